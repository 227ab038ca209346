# What sessions see: Python, a shell and the usual small programs. Everything else a container of
# sandboxes needs (its user, its limits, the supervisor) is set when it is started.
ARG BASE
FROM ${BASE}
RUN find / -xdev -perm /6000 -type f -exec chmod a-s {} +
