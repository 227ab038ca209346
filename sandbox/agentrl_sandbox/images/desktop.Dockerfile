# A desktop and its programs, on Debian: `agentrl image build desktop` names the base and the
# packages. What a desktop needs beside them (its user, its files in /etc) it gets when it starts.
ARG BASE
FROM ${BASE}
ARG PACKAGES
ARG DEBIAN_FRONTEND=noninteractive
RUN printf 'path-exclude=/usr/share/%s/*\n' doc info locale man >/etc/dpkg/dpkg.cfg.d/agentrl \
    && echo force-unsafe-io >>/etc/dpkg/dpkg.cfg.d/agentrl \
    && mkdir -p /var/cache/apt/archives/partial /var/lib/apt/lists/partial /var/log/apt \
    && apt-get -qq -o Acquire::Retries=3 update \
    && apt-get -qq -o Acquire::Retries=3 install -y --no-install-recommends ${PACKAGES} \
    && rm -rf /var/cache/apt/* /var/lib/apt/lists/* /var/log/* \
    && find / -xdev -perm /6000 -type f -exec chmod a-s {} + \
    && rm -rf /etc/chromium && ln -s /run/desktop/etc/chromium /etc/chromium
ENV PATH=/usr/local/bin:/usr/bin:/bin:/usr/games LANG=C.UTF-8
