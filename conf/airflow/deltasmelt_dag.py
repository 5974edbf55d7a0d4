"""Run silver and gold as a DAG of Airflow 3; the endless reader is no task and runs separately.

Each task is one command in a shell of the worker. On the worker, deltasmelt is in /opt/smelt with Spark and
Java. The folder /etc/deltasmelt holds the pipeline file and `environment`, a file with a line NAME='value'
for each variable. Airflow would store a secret from a template with each run.

The shell runs as the worker's account. The account must be able to read `environment` (mode 640, owner root
and a group of the account), and to write into /var/log/deltasmelt. If the lake is a folder, the account must
write into the folder, too. Alternatively add ``"run_as_user": "deltasmelt"`` to SHARED; the worker's account
then needs sudo without a password.

Exit codes become these states:

* 0: success.
* 3: failed. The stage has caught up without some tables or documents, because an error has stopped them; the
  task's log names them. The next task runs all the same (`all_done`), to update the documents of all
  remaining tables.
* any further code: failed. The next task runs over the lake's present content. The next run of the DAG
  resumes where the lake ends, whatever ended this run, so Airflow does not retry a stage before.

Airflow derives the state of a run from its last tasks alone. So `failed` watches all tasks, and fails the run
if any task failed. For a notification, give the DAG an ``on_failure_callback`` with a notifier of Airflow.

``max_active_runs=1`` separates runs; deltasmelt would refuse a second run of a stage (already-running).
``catchup=False``, because one run does the work of all missed runs.
"""

# ruff: noqa: INP001 - a file in Airflow's folder of DAGs, no module
from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

SHARED = {
    "trigger_rule": "all_done",
    "retries": 0,
    "execution_timeout": timedelta(hours=24),  # ends a hanging command; a first load may need more
}
DAILY = {**SHARED, "execution_timeout": timedelta(hours=12)}
ONCE_MORE = {"retries": 1, "retry_delay": timedelta(minutes=1)}
WATCHER = {
    "task_id": "failed",
    "bash_command": "echo 'a task of this run has failed: its log says why' >&2; exit 1",
    "trigger_rule": "one_failed",
    "retries": 0,
}

with DAG(
    dag_id="deltasmelt_stages",
    schedule="*/5 * * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    tags=["deltasmelt"],
):
    silver = BashOperator(
        task_id="silver",
        bash_command="set -a; . /etc/deltasmelt/environment; "
        "exec /opt/smelt/bin/smelt silver /etc/deltasmelt/pipeline.yml --until-caught-up",
        **SHARED,
    )
    gold = BashOperator(
        task_id="gold",
        bash_command="set -a; . /etc/deltasmelt/environment; "
        "exec /opt/smelt/bin/smelt gold /etc/deltasmelt/pipeline.yml --until-caught-up",
        **SHARED,
    )
    gold.set_upstream(silver)
    BashOperator(**WATCHER).set_upstream([silver, gold])

with DAG(
    dag_id="deltasmelt_daily",
    schedule="30 3 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    tags=["deltasmelt"],
):
    maintain = BashOperator(
        task_id="maintain",
        bash_command="set -a; . /etc/deltasmelt/environment; "
        "exec /opt/smelt/bin/smelt maintain /etc/deltasmelt/pipeline.yml",
        **{**DAILY, **ONCE_MORE},
    )
    quality = BashOperator(
        task_id="quality",
        bash_command="set -a; . /etc/deltasmelt/environment; "
        "exec /opt/smelt/bin/smelt quality /etc/deltasmelt/pipeline.yml "
        "--report /var/log/deltasmelt/quality.html",
        **DAILY,
    )
    quality.set_upstream(maintain)
    BashOperator(**WATCHER).set_upstream([maintain, quality])
