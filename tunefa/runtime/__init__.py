"""What `import tunefa` gives a program: flash_attention and the choice of what runs it."""
