"""Everbeat: a task queue in which no task is lost, stuck or silently run twice when something dies."""

from everbeat.app import Everbeat
from everbeat.broker import Broker
from everbeat.config import AppConfig, PostgresConfig, QueueConfig, RecoveryConfig, RetryPolicy, SQLiteConfig
from everbeat.current import CurrentTask, current_task
from everbeat.errors import (
    ConfigError,
    EverbeatError,
    PayloadError,
    RecoveryFailed,
    ResultTimeout,
    ResultTooLarge,
    SchemaMismatch,
    StoreDamaged,
    StoreUnavailable,
    TaskCancelled,
    TaskCancelRequested,
    TaskConflict,
    TaskExpired,
    TaskFailed,
    TaskInterrupted,
    TaskNotFound,
    TaskTimeout,
    WorkflowCancelled,
    WorkflowConflict,
    WorkflowFailed,
    WorkflowInvalid,
    WorkflowNotFound,
)
from everbeat.handle import TaskHandle
from everbeat.model.flow import NodeFailure, NodeInfo, NodeStatus, OnError, WorkflowInfo, WorkflowStatus
from everbeat.model.integrity import IntegrityResult
from everbeat.model.report import RecoveryReport
from everbeat.model.state import TaskStatus
from everbeat.model.task import TaskInfo
from everbeat.model.worker import StaleWorker, WorkerHeartbeatStatus
from everbeat.task import Task
from everbeat.workflow import Node, Workflow
from everbeat.workflow_handle import WorkflowHandle

__version__ = "0.1.0"

__all__ = [
    "AppConfig",
    "Broker",
    "ConfigError",
    "CurrentTask",
    "Everbeat",
    "EverbeatError",
    "IntegrityResult",
    "Node",
    "NodeFailure",
    "NodeInfo",
    "NodeStatus",
    "OnError",
    "PayloadError",
    "PostgresConfig",
    "QueueConfig",
    "RecoveryConfig",
    "RecoveryFailed",
    "RecoveryReport",
    "ResultTimeout",
    "ResultTooLarge",
    "RetryPolicy",
    "SQLiteConfig",
    "SchemaMismatch",
    "StaleWorker",
    "StoreDamaged",
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
    "Workflow",
    "WorkflowCancelled",
    "WorkflowConflict",
    "WorkflowFailed",
    "WorkflowHandle",
    "WorkflowInfo",
    "WorkflowInvalid",
    "WorkflowNotFound",
    "WorkflowStatus",
    "current_task",
]
