"""Pages for people: server-rendered, without a build step, and usable without JavaScript."""
