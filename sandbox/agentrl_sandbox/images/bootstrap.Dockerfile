# The same without a registry: `agentrl image build` makes root.tar from Debian's packages.
FROM scratch
ADD root.tar /
ENV PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8
