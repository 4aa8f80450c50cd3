"""Result files, the tables and pictures made of them, the machine and its floor."""
