"""The loops of a life, each in a thread: started, stopped, and paused together."""

from everbeat.report.log import Reporter
from everbeat.run.service import Loop, Service


class Services:
    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._running: list[Service] = []
        self._paused: list[Loop] = []

    def start(self, loop: Loop) -> None:
        service = Service(loop, self._reporter)
        self._running.append(service)
        service.start()

    def hurry(self, loop: Loop) -> None:
        for service in self._running:
            if service.loop is loop:
                service.hurry()

    def stop(self) -> None:
        """All of them, in the order they were started."""
        for service in self._running:
            service.stop()
        self._running.clear()

    def pause(self, *, but: Loop) -> None:
        """All but one; those that were paused before stay so."""
        for service in [service for service in self._running if service.loop is not but]:
            service.stop()
            self._running.remove(service)
            self._paused.append(service.loop)

    def resume(self) -> None:
        paused, self._paused = self._paused, []
        for loop in paused:
            self.start(loop)

    @property
    def are_paused(self) -> bool:
        return bool(self._paused)
