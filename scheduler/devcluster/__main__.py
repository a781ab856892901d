"""`python -m scheduler.devcluster` is `fleetbeat up`."""

from scheduler.devcluster.up import up_command

if __name__ == "__main__":
    up_command()
