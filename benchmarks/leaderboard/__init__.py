"""The leaderboard: baselines and submissions of others, scored on the holdouts of the committed tables."""
