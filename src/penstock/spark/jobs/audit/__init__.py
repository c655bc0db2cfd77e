"""The job `audit` compares a topic with its copy and reports every difference."""
