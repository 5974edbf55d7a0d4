"""Silver and gold as a DAG of Airflow 3, beside the reader, which is no task: it never ends.

Each task is one command in a shell of the worker. There deltasmelt is in /opt/smelt with Spark and Java, and
the pipeline file in /etc/deltasmelt. Beside it lies `environment`, with a line NAME='value' for each variable
that the file takes. A secret that came by Airflow's templates would be stored with each run.

The shell runs as the worker's account. It must be able to read `environment` (mode 640, of root and a group
of the account), to write into /var/log/deltasmelt, and into the lake if that is a folder. Or add
``"run_as_user": "deltasmelt"`` to SHARED, for which the worker's account needs sudo without a password.

How exit codes become states:

* 0: success.
* 3: failed. The stage has caught up, but tables or documents are left out, because an error has stopped them;
  the task's log names them. What follows runs all the same (`all_done`): the documents of the other tables
  are to be current.
* anything else: failed. What follows runs, and finds what the lake holds. The next run of the DAG resumes
  where the lake ends, whatever ended this one, so stages are not tried again before it.

Airflow takes the state of a run from its last tasks alone. So `failed` watches the others, and fails the run
if any of them failed. To tell somebody, give the DAG an ``on_failure_callback`` with a notifier of Airflow.

``max_active_runs=1`` keeps runs apart; a second run of a stage would be refused anyway (already-running).
``catchup=False``, because one run does the work of all that were missed.
"""

# ruff: noqa: INP001 - a file in Airflow's folder of DAGs, no module
from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

SHARED = {
    "trigger_rule": "all_done",
    "retries": 0,
    "execution_timeout": timedelta(hours=24),  # of what hangs; a first load may need more
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
