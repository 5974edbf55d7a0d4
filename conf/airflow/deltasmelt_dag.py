"""Silver and gold as a DAG of Airflow 3, beside the reader, which is no task: it never ends.

Each task is one command in a shell of the worker. There deltasmelt is in /opt/smelt with Spark and Java, and
the pipeline file in /etc/deltasmelt. Beside it lies `environment`, with a line NAME='value' for each variable
that the file takes. A secret that came by Airflow's templates would be stored with each run.

The shell runs as the worker's account. It must be able to read `environment` (mode 640, of root and a group
of the account), to write into /var/log/deltasmelt, and into the lake if that is a folder. Or add
``"run_as_user": "deltasmelt"`` to SHARED, for which the worker's account needs sudo without a password.

How exit codes become states:

* 0: success.
* 3: **skipped**. The stage has caught up, but tables or documents are left out, because an error has stopped
  them. That is seen in the grid, and `smelt status` says which. It is not tried again, which would change
  nothing. What follows runs (`none_failed`): the documents of the other tables are to be current.
* anything else: failed. It is tried once more after a minute. What follows does not run; the next run of the
  DAG resumes where the lake ends, whatever ended this one.

``max_active_runs=1`` keeps runs apart; a second run of a stage would be refused anyway (already-running).
``catchup=False``, because one run does the work of all that were missed.
"""

# ruff: noqa: INP001 - a file in Airflow's folder of DAGs, no module
from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

LEFT_OUT = 3
SHARED = {
    "skip_on_exit_code": LEFT_OUT,
    "trigger_rule": "none_failed",
    "retries": 1,
    "retry_delay": timedelta(minutes=1),
    "execution_timeout": timedelta(hours=24),  # of what hangs; a first load may need more
}
DAILY = {**SHARED, "execution_timeout": timedelta(hours=12)}

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
        **DAILY,
    )
    quality = BashOperator(
        task_id="quality",
        bash_command="set -a; . /etc/deltasmelt/environment; "
        "exec /opt/smelt/bin/smelt quality /etc/deltasmelt/pipeline.yml "
        "--report /var/log/deltasmelt/quality.html",
        **{**DAILY, "retries": 0},  # a check that failed would fail again
    )
    quality.set_upstream(maintain)
