"""Celery: acks_late, so that a task survives its worker, and no results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from celery import Celery

_handle: list[Callable[[str], None]] = []


def _task(url: str, settings: dict[str, Any]) -> Any:
    app = Celery("bench", broker=url)
    app.conf.update(
        task_acks_late=True,
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
        worker_prefetch_multiplier=settings.get("prefetch", 4),
        worker_disable_rate_limits=True,
        broker_connection_retry_on_startup=True,
        worker_redirect_stdouts=False,
    )
    if lease := settings.get("lease"):
        app.conf.broker_transport_options = {"visibility_timeout": lease}

    @app.task(name="run")
    def run(payload: str) -> None:
        _handle[0](payload)

    return run


def add_each(url: str, payloads: Iterable[str], settings: dict[str, Any]) -> None:
    send = _task(url, settings).delay
    for payload in payloads:
        send(payload)


def work(url: str, settings: dict[str, Any], handle: Callable[[str], None]) -> None:
    _handle[:] = [handle]
    task = _task(url, settings)
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=CRITICAL"]
    pool = [f"--pool={settings['pool']}", f"--concurrency={settings['concurrency']}"]
    task.app.worker_main(["--quiet", "worker", *quiet, *pool])
