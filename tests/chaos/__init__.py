"""Random faults on a real cluster, and a program that checks the recorded history."""
