"""Results for people: pictures, tables and pages. The only room that loads matplotlib."""
