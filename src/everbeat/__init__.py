"""Everbeat: a task queue in which no task is lost, stuck or silently run twice when something dies."""

from everbeat.app import Everbeat
from everbeat.broker import Broker
from everbeat.config import AppConfig, PostgresConfig, QueueConfig, RecoveryConfig, RetryPolicy, SQLiteConfig
from everbeat.current import CurrentTask, current_task
from everbeat.errors import (
    ConfigError,
    EverbeatError,
    PayloadError,
    ResultTimeout,
    ResultTooLarge,
    SchemaMismatch,
    StoreUnavailable,
    TaskCancelled,
    TaskCancelRequested,
    TaskConflict,
    TaskExpired,
    TaskFailed,
    TaskInterrupted,
    TaskNotFound,
    TaskTimeout,
)
from everbeat.handle import TaskHandle
from everbeat.model.recovery import RecoveryReport
from everbeat.model.state import TaskStatus
from everbeat.model.task import TaskInfo
from everbeat.model.worker import StaleWorker, WorkerHeartbeatStatus
from everbeat.task import Task

__version__ = "0.1.0"

__all__ = [
    "AppConfig",
    "Broker",
    "ConfigError",
    "CurrentTask",
    "Everbeat",
    "EverbeatError",
    "PayloadError",
    "PostgresConfig",
    "QueueConfig",
    "RecoveryConfig",
    "RecoveryReport",
    "ResultTimeout",
    "ResultTooLarge",
    "RetryPolicy",
    "SQLiteConfig",
    "SchemaMismatch",
    "StaleWorker",
    "StoreUnavailable",
    "Task",
    "TaskCancelRequested",
    "TaskCancelled",
    "TaskConflict",
    "TaskExpired",
    "TaskFailed",
    "TaskHandle",
    "TaskInfo",
    "TaskInterrupted",
    "TaskNotFound",
    "TaskStatus",
    "TaskTimeout",
    "WorkerHeartbeatStatus",
    "current_task",
]
