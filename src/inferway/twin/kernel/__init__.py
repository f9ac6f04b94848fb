"""The compiled part of the site's twin: what happens at each event, tens of nanoseconds apiece."""
