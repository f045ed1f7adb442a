"""What people read: tables and arithmetic on the terminal. Layer 4, beside the commands."""
