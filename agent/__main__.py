"""`python -m agent` is `fleetbeat agent`."""

from agent.main import agent_command

if __name__ == "__main__":
    agent_command()
