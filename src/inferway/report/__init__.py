"""Statistics, tables and figures; import the submodule, matplotlib loads only with `figure`."""
