"""Show finished runs as pictures, tables and one page. It reads run directories as files, and loads no model."""
