"""What a task's last trajectories still say under newer weights, instead of saying it again."""
