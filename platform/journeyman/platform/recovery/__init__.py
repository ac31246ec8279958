"""Tasks whose workflow is lost: found, and begun anew from their rows."""
