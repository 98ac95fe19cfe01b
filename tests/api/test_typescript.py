"""The TypeScript client on Node, against a real server; and its generated types."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from penstock import testing
from penstock.settings import Settings
from scripts import typescript

from .test_bodies import site
from .test_task_streams import Handler

FOLDER = Path(__file__).parents[2] / "clients/typescript"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
def test_client_on_node(db: testing.Database, api_settings: Settings) -> None:
    """Requests, lost responses, errors, another tenant, and streams that break."""
    with site(db, api_settings, "process") as (world, served):
        ann, bob = world.join("ann"), world.join("bob")
        task = Handler(world, ann)
        task.stream("one")
        task.stream("two", {"n": 2})
        task.stream("three")
        task.complete()
        environment = {
            **os.environ, "PENSTOCK_URL": served.url, "PENSTOCK_KEY": world.key("member", ann.tenant),
            "OTHER_KEY": world.key("owner", bob.tenant), "JOB": task.job, "TASK": str(task.id),
        }  # fmt: skip
        run = subprocess.run(
            ["node", "--test", "test/"],
            cwd=FOLDER,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "# pass 8" in run.stdout and "# skipped 0" in run.stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="there is no npm here")
def test_types_compile(tmp_path: Path) -> None:
    """TypeScript accepts right calls and rejects wrong ones."""
    install = ["npm", "install", "--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "typescript@5"]
    done = subprocess.run(install, cwd=tmp_path, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"typescript cannot be installed: {done.stderr[-500:]}")
    compiler = [str(tmp_path / "node_modules/.bin/tsc"), "--noEmit", "--strict", "--target", "es2022"]
    options = ["--module", "nodenext", "--moduleResolution", "nodenext", "--lib", "es2022,dom"]
    run = subprocess.run([*compiler, *options, "test/types.mts"], cwd=FOLDER, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


def test_types_of_a_schema() -> None:
    document = {
        "components": {"schemas": {
            "Job": {"type": "object", "required": ["id"], "properties": {
                "id": {"type": "string"}, "odd-name": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                "tags": {"type": "object", "additionalProperties": {"type": "string"}}}},
            "Page[Job]": {"type": "object", "properties": {
                "items": {"type": "array", "items": {"$ref": "#/components/schemas/Job"}}}},
        }},
        "paths": {"/jobs/{id}": {"get": {
            "summary": "Get */ it",
            "parameters": [
                {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}},
                {"name": "how", "in": "query", "schema": {"enum": ["a", "b"]}},
            ],
            "responses": {"200": {"content": {"application/json": {"schema": {
                "$ref": "#/components/schemas/Page[Job]"}}}}},
        }}},
    }  # fmt: skip
    text = typescript.text_of(document)
    assert (
        'export type Job = {\n  id: string;\n  "odd-name"?: (number | null);\n  tags?: Record<string, string>;\n};'
        in text
    )
    assert "export type Page_Job = {\n  items?: Array<Job>;\n};" in text
    assert (
        '  /** Get * / it */\n  "GET /jobs/{id}": {\n    path: { id: string };\n    query?: { how?: "a" | "b" };'
        in text
    )
    assert "    body?: undefined;\n    response: Page_Job;\n  };" in text
