"""Types shared by all layers: one module per noun, with the names of SQL, HTTP and the CLI."""

from __future__ import annotations

from penstock.types.actions import Action, Weight
from penstock.types.admin import Person, PersonDetails, ProfileRole
from penstock.types.alerts import Alert
from penstock.types.amounts import Amount, exact
from penstock.types.artifacts import OUTPUT, Artifact, KeptArtifact, LinkedArtifact, LinkKind, referred
from penstock.types.audit import AuditHead, AuditLine, AuditSeal
from penstock.types.billing import (
    BillingLink,
    BillingStatus,
    LapsingTenant,
    PlanPrice,
    Subscription,
    SubscriptionStatus,
)
from penstock.types.bulks import (
    Bulk,
    BulkResult,
    BulkSummary,
    RowCounts,
    RowProblem,
    RowsAdded,
    RowState,
    SourceCheck,
)
from penstock.types.costs import (
    BillLine,
    By,
    ComparedPrice,
    CostDay,
    CostDifference,
    CostEntry,
    CostSum,
    ExchangeRate,
    ExpensiveJob,
    JobCost,
    Price,
)
from penstock.types.database_settings import Setting
from penstock.types.dead_letters import DeadLetter, LetterVerb
from penstock.types.entitlements import Entitlements, Gate, GateMode, GateValues, GateVerdict
from penstock.types.explanations import Explanation, JobExplanation, Wait
from penstock.types.forecasts import Forecast, ForecastBudget, ForecastCost, ForecastFinish, ForecastQuota
from penstock.types.invitations import Invitation, Invited, NewInvitation
from penstock.types.job_types import StartableType
from penstock.types.jobs import ENDED, Cause, Job, JobChange, JobStatus, JobVerb, Phase, Progress, failure
from penstock.types.keys import ApiKey, KeyRole, NewKey, Scope
from penstock.types.kinds import KindPolicy, Starter, declared_policy
from penstock.types.lanes import Lane, LaneState, WantedSlots
from penstock.types.logs import LogLine
from penstock.types.notifications import (
    Channel,
    Failure,
    NewNotificationTarget,
    Notification,
    NotificationEvent,
    NotificationTarget,
    Streak,
    TakenNotification,
)
from penstock.types.operations import OPERATION_STATUSES, OperationCount, OperationStatus, TaskOperation
from penstock.types.options import BulkOptions, JobOptions, OnFailure, OnLimit, TaskOptions, given
from penstock.types.overview import Overview, OverviewProblem
from penstock.types.prompts import Prompt, PromptFallback, PromptStats, PromptVersion, TrialRow, variables_of
from penstock.types.providers import Provider, ProviderEvent, ProviderKey, ProviderValues, SealedKey
from penstock.types.schedules import Missed, Schedule
from penstock.types.sessions import Session
from penstock.types.sheets import BindingKind, SheetBinding
from penstock.types.spend import FixedCost, FixedCostPeriod, FixedCostValues, PlanRevenue, Spend, TenantMargin
from penstock.types.streams import StreamChunk
from penstock.types.tasks import Attempt, GraphTask, Run, Task, TaskRate, TaskStatus
from penstock.types.tenants import Me, Member, Role, Tenant, TenantShare
from penstock.types.usage import Limit, Meter, MeterUsage, Plan, PlanValues, UsageDay, UsageStatus
from penstock.types.waits import Answer, TaskWait, WaitStatus
from penstock.types.webhooks import Webhook, WebhookOutcome
from penstock.types.workers import Worker, WorkerCounts

__all__ = [
    "ENDED",
    "OPERATION_STATUSES",
    "OUTPUT",
    "Action",
    "Alert",
    "Amount",
    "Answer",
    "ApiKey",
    "Artifact",
    "Attempt",
    "AuditHead",
    "AuditLine",
    "AuditSeal",
    "BillLine",
    "BillingLink",
    "BillingStatus",
    "BindingKind",
    "Bulk",
    "BulkOptions",
    "BulkResult",
    "BulkSummary",
    "By",
    "Cause",
    "Channel",
    "ComparedPrice",
    "CostDay",
    "CostDifference",
    "CostEntry",
    "CostSum",
    "DeadLetter",
    "Entitlements",
    "ExchangeRate",
    "ExpensiveJob",
    "Explanation",
    "Failure",
    "FixedCost",
    "FixedCostPeriod",
    "FixedCostValues",
    "Forecast",
    "ForecastBudget",
    "ForecastCost",
    "ForecastFinish",
    "ForecastQuota",
    "Gate",
    "GateMode",
    "GateValues",
    "GateVerdict",
    "GraphTask",
    "Invitation",
    "Invited",
    "Job",
    "JobChange",
    "JobCost",
    "JobExplanation",
    "JobOptions",
    "JobStatus",
    "JobVerb",
    "KeptArtifact",
    "KeyRole",
    "KindPolicy",
    "Lane",
    "LaneState",
    "LapsingTenant",
    "LetterVerb",
    "Limit",
    "LinkKind",
    "LinkedArtifact",
    "LogLine",
    "Me",
    "Member",
    "Meter",
    "MeterUsage",
    "Missed",
    "NewInvitation",
    "NewKey",
    "NewNotificationTarget",
    "Notification",
    "NotificationEvent",
    "NotificationTarget",
    "OnFailure",
    "OnLimit",
    "OperationCount",
    "OperationStatus",
    "Overview",
    "OverviewProblem",
    "Person",
    "PersonDetails",
    "Phase",
    "Plan",
    "PlanPrice",
    "PlanRevenue",
    "PlanValues",
    "Price",
    "ProfileRole",
    "Progress",
    "Prompt",
    "PromptFallback",
    "PromptStats",
    "PromptVersion",
    "Provider",
    "ProviderEvent",
    "ProviderKey",
    "ProviderValues",
    "Role",
    "RowCounts",
    "RowProblem",
    "RowState",
    "RowsAdded",
    "Run",
    "Schedule",
    "Scope",
    "SealedKey",
    "Session",
    "Setting",
    "SheetBinding",
    "SourceCheck",
    "Spend",
    "StartableType",
    "Starter",
    "Streak",
    "StreamChunk",
    "Subscription",
    "SubscriptionStatus",
    "TakenNotification",
    "Task",
    "TaskOperation",
    "TaskOptions",
    "TaskRate",
    "TaskStatus",
    "TaskWait",
    "Tenant",
    "TenantMargin",
    "TenantShare",
    "TrialRow",
    "UsageDay",
    "UsageStatus",
    "Wait",
    "WaitStatus",
    "WantedSlots",
    "Webhook",
    "WebhookOutcome",
    "Weight",
    "Worker",
    "WorkerCounts",
    "declared_policy",
    "exact",
    "failure",
    "given",
    "referred",
    "variables_of",
]
