"""Result files, the tables and plots made from them, the machine and its memory floor."""
