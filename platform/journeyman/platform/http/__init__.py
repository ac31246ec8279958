"""The toolkit of REST endpoints: fields, pages, problems, file contents, dependencies. Imports no slice."""
