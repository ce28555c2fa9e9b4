"""A host behind a cable: a network namespace, and a pair of interfaces between it and us. The cable can be cut."""

import os
import subprocess
from typing import Self

import psycopg
from tests.postgres import Cluster

NETWORK = "10.213.77"
HERE, THERE = f"{NETWORK}.1", f"{NETWORK}.2"


class FarHost:
    def __init__(self) -> None:
        self.name = f"everbeat-{os.getpid()}"
        self._interface = f"eb{os.getpid()}"

    def __enter__(self) -> Self:
        run("ip", "netns", "add", self.name)
        try:
            run("ip", "link", "add", self._interface, "type", "veth", "peer", "name", "eth0", "netns", self.name)
            run("ip", "address", "add", f"{HERE}/30", "dev", self._interface)
            run("ip", "link", "set", self._interface, "up")
            for words in ("link set lo up", "link set eth0 up", f"address add {THERE}/30 dev eth0"):
                run(*self.within, "ip", *words.split())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        run("ip", "netns", "delete", self.name)  # and what is in it

    @property
    def within(self) -> list[str]:
        """What a command begins with that is to run there."""
        return ["ip", "netns", "exec", self.name]

    def let_in(self, cluster: Cluster, url: str) -> str:
        """The URL of a database for somebody there."""
        with (cluster.directory / "data" / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {NETWORK}.0/30 trust\n")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SELECT pg_reload_conf()")
        return url.replace("127.0.0.1", HERE)

    def cut(self) -> None:
        """Every packet is dropped, and nobody is told."""
        for chain in ("INPUT", "OUTPUT"):
            run(*self.within, "iptables", "-A", chain, "-o" if chain == "OUTPUT" else "-i", "eth0", "-j", "DROP")

    def mend(self) -> None:
        run(*self.within, "iptables", "-F")


def run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr or done.stdout}"
