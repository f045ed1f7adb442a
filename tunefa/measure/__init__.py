"""A binary becomes a trial: it is checked, timed, raced, or its time is predicted."""
