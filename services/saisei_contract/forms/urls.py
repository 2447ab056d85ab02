"""The exact URLs of the 17 Forms. Identity is string equality, trailing slash included (H-008)."""

from __future__ import annotations


def _url(name: str, version: str) -> str:
    return f"https://edge.forms.takoform.com/forms/{name}/{version}/"


MODULE_WORKER = _url("ModuleWorker", "0.3.0")
WORKER_BUNDLE = _url("WorkerBundle", "0.2.0")
STATIC_ASSET_BUNDLE = _url("StaticAssetBundle", "0.2.0")
SQLITE_MIGRATION_SET = _url("SQLiteMigrationSet", "0.2.0")
WORKER_VERSION = _url("WorkerVersion", "0.5.0")
WORKER_DEPLOYMENT = _url("WorkerDeployment", "0.4.0")
EDGE_KV_NAMESPACE = _url("EdgeKVNamespace", "0.2.0")
SQLITE_DATABASE = _url("SQLiteDatabase", "0.2.0")
SQLITE_MIGRATION_APPLICATION = _url("SQLiteMigrationApplication", "0.2.0")
OBJECT_BUCKET = _url("ObjectBucket", "0.2.0")
AT_LEAST_ONCE_QUEUE = _url("AtLeastOnceQueue", "0.2.0")
QUEUE_CONSUMER = _url("QueueConsumer", "0.3.0")
WORKER_CRON_TRIGGER = _url("WorkerCronTrigger", "0.3.0")
WORKER_ENDPOINT = _url("WorkerEndpoint", "0.3.0")
WORKER_CUSTOM_DOMAIN = _url("WorkerCustomDomain", "0.3.0")
ACTOR_NAMESPACE = _url("ActorNamespace", "0.3.0")
DURABLE_WORKFLOW = _url("DurableWorkflow", "0.3.0")

ALL_FORMS = frozenset(
    {
        MODULE_WORKER,
        WORKER_BUNDLE,
        STATIC_ASSET_BUNDLE,
        SQLITE_MIGRATION_SET,
        WORKER_VERSION,
        WORKER_DEPLOYMENT,
        EDGE_KV_NAMESPACE,
        SQLITE_DATABASE,
        SQLITE_MIGRATION_APPLICATION,
        OBJECT_BUCKET,
        AT_LEAST_ONCE_QUEUE,
        QUEUE_CONSUMER,
        WORKER_CRON_TRIGGER,
        WORKER_ENDPOINT,
        WORKER_CUSTOM_DOMAIN,
        ACTOR_NAMESPACE,
        DURABLE_WORKFLOW,
    }
)
