"""The dashboard pages of the app: events, slides, conversions, quota and failures."""

from __future__ import annotations

from penstock import App, PageAction


def declare(app: App) -> None:
    """Declare the pages."""
    queue = "Make thumbnails of {slides_to_queue} slides for about {cost_to_queue} USD?"
    app.page(
        "events", "Events", source="event_list", key="id",
        description="Thumbnails are made for events that are switched on.",
        columns={"name": "Name", "starts_on": "Starts", "thumbnail_generation_enabled": "On",
                 "slides_to_queue": "To queue", "cost_to_queue": "Cost in USD", "pending": "Pending",
                 "processing": "Processing", "completed": "Completed", "failed": "Failed"},
        filters=["name", "thumbnail_generation_enabled"],
        actions=[
            PageAction("on", "Switch on", "set_thumbnail_generation", "p_event_id", queue,
                       values={"p_enabled": True}, when={"thumbnail_generation_enabled": [False]}),
            PageAction("off", "Switch off", "set_thumbnail_generation", "p_event_id",
                       "Stop making thumbnails for {name}? Existing ones stay.",
                       values={"p_enabled": False}, when={"thumbnail_generation_enabled": [True]}),
            PageAction("retry", "Retry failed", "retry_event", "p_event_id",
                       "Convert {failed} failed slides of {name} again?",
                       when={"thumbnail_generation_enabled": [True]}),
        ],
    )  # fmt: skip
    app.page(
        "slides", "Slides", source="slide_list", key="id", order="created_at",
        columns={"name": "Name", "thumbnail_artifact_id": "Thumbnail", "type": "Type",
                 "thumbnail_status": "Status", "thumbnail_error": "Error", "event": "Event",
                 "job_id": "Job", "created_at": "Uploaded"},
        filters=["event", "event_id", "thumbnail_status", "name"], links={"job_id": "/jobs/{}"},
        files=["thumbnail_artifact_id"],
        actions=[PageAction("retry", "Retry", "retry_thumbnail", "p_slide_id", "Convert {name} again?",
                            when={"thumbnail_status": ["none", "failed"]})],
    )  # fmt: skip
    app.page(
        "conversions", "Conversions", source="cloudconvert_jobs", key="id",
        columns={"slide": "Slide", "cloudconvert_job_id": "CloudConvert's job", "status": "Status",
                 "error_message": "Error", "started_at": "Started", "completed_at": "Ended",
                 "webhook_received_at": "Webhook", "is_late": "Late", "job_id": "Job"},
        filters=["slide", "slide_id", "status"], links={"job_id": "/jobs/{}"},
    )  # fmt: skip
    app.page(
        "quota", "Quota", source="tenants", key="id",
        columns={"name": "Tenant", "thumbnail_quota_total": "Total", "thumbnail_quota_used": "Used",
                 "thumbnail_quota_held": "Reserved", "thumbnail_quota_remaining": "Remaining"},
        packs="thumbnails",
    )  # fmt: skip
    app.page(
        "failures", "Failures", source="thumbnail_failure_log", key="id", order="occurred_at",
        columns={"occurred_at": "Time", "event": "Event", "slide": "Slide", "error_type": "Type",
                 "error_message": "Error", "job_id": "Job"},
        filters=["event", "event_id", "slide_id", "error_type"], links={"job_id": "/jobs/{}"},
    )  # fmt: skip
