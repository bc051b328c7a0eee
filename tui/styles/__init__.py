"""Style sheets. The file makes the folder a package, so that an editable installation finds them too."""
