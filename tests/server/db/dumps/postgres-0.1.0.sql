SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE public.conversion_labels (
    conversion character varying(64) NOT NULL,
    key character varying(64) NOT NULL,
    value character varying(256) NOT NULL
);
CREATE TABLE public.conversions (
    id character varying(64) NOT NULL,
    token character varying(64) NOT NULL,
    state character varying(16) NOT NULL,
    priority integer NOT NULL,
    request json NOT NULL,
    source text NOT NULL,
    progress json,
    result json,
    read_bytes bigint,
    error json,
    attempts integer NOT NULL,
    schedule character varying(128),
    executor character varying(64),
    claim character varying(32),
    begun boolean NOT NULL,
    created_at double precision NOT NULL,
    started_at double precision,
    ended_at double precision,
    revision bigint NOT NULL
);
CREATE TABLE public.ended_totals (
    state character varying(16) NOT NULL,
    within_seconds integer NOT NULL,
    conversions bigint NOT NULL,
    seconds double precision NOT NULL,
    moved_bytes bigint NOT NULL
);
CREATE TABLE public.executors (
    id character varying(64) NOT NULL,
    host character varying(255) NOT NULL,
    pid integer NOT NULL,
    heartbeat_at double precision NOT NULL
);
CREATE TABLE public.idempotency (
    token character varying(64) NOT NULL,
    key character varying(255) NOT NULL,
    request_hash character varying(64) NOT NULL,
    conversion character varying(64) NOT NULL,
    created_at double precision NOT NULL
);
CREATE TABLE public.layouts (
    name character varying(128) NOT NULL,
    version integer NOT NULL,
    layout json NOT NULL,
    token character varying(64) NOT NULL,
    created_at double precision NOT NULL,
    deleted boolean NOT NULL
);
CREATE TABLE public.schedule_holds (
    id character varying(32) NOT NULL,
    path text NOT NULL,
    executor character varying(64) NOT NULL,
    conversion character varying(64)
);
CREATE TABLE public.schedule_outputs (
    id character varying(64) NOT NULL,
    schedule character varying(128) NOT NULL,
    template text NOT NULL,
    target text NOT NULL,
    step bigint,
    at double precision NOT NULL,
    conversion character varying(64) NOT NULL,
    state character varying(16) NOT NULL,
    identity character varying(128)
);
CREATE TABLE public.schedule_runs (
    schedule character varying(128) NOT NULL,
    key character varying(128) NOT NULL,
    step bigint,
    at double precision NOT NULL,
    outcome character varying(16) NOT NULL,
    conversion character varying(64),
    detail text,
    executor character varying(64),
    claim character varying(32),
    settled integer NOT NULL
);
CREATE TABLE public.schedules (
    name character varying(128) NOT NULL,
    schedule json NOT NULL,
    paused boolean NOT NULL,
    token character varying(64) NOT NULL,
    created_at double precision NOT NULL,
    updated_at double precision NOT NULL,
    next_at double precision,
    revision bigint NOT NULL
);
CREATE TABLE public.sessions (
    key character varying(64) NOT NULL,
    token character varying(64) NOT NULL,
    token_sha256 character varying(64) NOT NULL,
    created_at double precision NOT NULL,
    expires_at double precision NOT NULL
);
INSERT INTO public.conversion_labels (conversion, key, value) VALUES ('01a2072721479d41d4b2ef95b335', 'team', 'eval');
INSERT INTO public.conversion_labels (conversion, key, value) VALUES ('01a207272a7c34ab85cde776e527', 'schedule', 'steps');
INSERT INTO public.conversion_labels (conversion, key, value) VALUES ('01a207272a7c34ab85cde776e527', 'step', '1');
INSERT INTO public.conversion_labels (conversion, key, value) VALUES ('01a207272a94d55b9da76cd377aa', 'schedule', 'steps');
INSERT INTO public.conversion_labels (conversion, key, value) VALUES ('01a207272a94d55b9da76cd377aa', 'step', '2');
INSERT INTO public.conversions (id, token, state, priority, request, source, progress, result, read_bytes, error, attempts, schedule, executor, claim, begun, created_at, started_at, ended_at, revision) VALUES ('01a2072721479d41d4b2ef95b335', 'ann', 'succeeded', 0, '{"target": "data/done", "layout": "serving@1", "mesh": null, "select": [], "drop": [], "rename": [], "cast": [], "compression": "none", "chunk_bytes": null, "ocdbt": false, "style": null, "overwrite": false, "restart": false, "verify": "written", "source": "data/run/1", "max_memory": null, "workers": null, "priority": 0, "labels": {"team": "eval"}}', 'data/run/1', '{"stage": "syncing", "moved_bytes": 8220, "total_bytes": 8220, "resumed_bytes": 0, "tasks_done": 3, "tasks": 3, "tensor": "", "bytes_per_second": 6674.991334435103, "seconds_left": 0.0}', '[{"command": "convert", "source": "data/run/1", "target": "data/done", "tensors": [{"source": "params/bias", "target": "params/bias", "shape": [6], "source_dtype": "float32", "target_dtype": "float32", "strategy": "whole", "nbytes": 24, "source_digest": "2d6fecff823e28f2", "target_digest": "2d6fecff823e28f2", "proof": "written", "cast": null}, {"source": "params/kernel", "target": "params/kernel", "shape": [64, 32], "source_dtype": "float32", "target_dtype": "float32", "strategy": "whole", "nbytes": 8192, "source_digest": "e604b63250c21298", "target_digest": "e604b63250c21298", "proof": "written", "cast": null}, {"source": "step", "target": "step", "shape": [], "source_dtype": "int32", "target_dtype": "int32", "strategy": "whole", "nbytes": 4, "source_digest": "bea416676c8ccc8b", "target_digest": "bea416676c8ccc8b", "proof": "written", "cast": null}], "nbytes": 8220, "read_bytes": 8232, "moved_bytes": 8220, "written_bytes": 8232, "seconds": 0.09920658999999432, "warnings": [], "resumed_bytes": 0, "already_done": false}]', 8232, 'null', 1, NULL, NULL, NULL, false, 1795416334.663924, 1795416334.69501, 1795416335.2827868, 4);
INSERT INTO public.conversions (id, token, state, priority, request, source, progress, result, read_bytes, error, attempts, schedule, executor, claim, begun, created_at, started_at, ended_at, revision) VALUES ('01a2072723c57d174e4f48c0c0d4', 'ann', 'failed', 0, '{"target": "data/failed", "layout": null, "mesh": null, "select": ["nothing"], "drop": [], "rename": [], "cast": [], "compression": "none", "chunk_bytes": null, "ocdbt": false, "style": null, "overwrite": false, "restart": false, "verify": "readback", "source": "data/run/1", "max_memory": null, "workers": null, "priority": 0, "labels": {}}', 'data/run/1', NULL, 'null', NULL, '{"type": "urn:reshard:problem:plan", "title": "The conversion makes no sense", "status": 422, "detail": "select ''nothing'' matches none of the 3 names it could apply to (params/bias, params/kernel, step); correct or remove it", "remedy": "correct or remove it", "error": "PlanError"}', 1, NULL, NULL, NULL, false, 1795416335.301624, 1795416335.3166242, 1795416336.0560656, 4);
INSERT INTO public.conversions (id, token, state, priority, request, source, progress, result, read_bytes, error, attempts, schedule, executor, claim, begun, created_at, started_at, ended_at, revision) VALUES ('01a207272a94d55b9da76cd377aa', 'ann', 'succeeded', 0, '{"target": "data/served/2", "layout": "serving", "mesh": null, "select": [], "drop": [], "rename": [], "cast": [], "compression": "none", "chunk_bytes": null, "ocdbt": false, "style": null, "overwrite": false, "restart": false, "verify": "written", "source": "data/run/2", "max_memory": null, "workers": null, "priority": 0, "labels": {"schedule": "steps", "step": "2"}}', 'data/run/2', '{"stage": "syncing", "moved_bytes": 8220, "total_bytes": 8220, "resumed_bytes": 0, "tasks_done": 3, "tasks": 3, "tensor": "", "bytes_per_second": 10064.394150302662, "seconds_left": 0.0}', '[{"command": "convert", "source": "data/run/2", "target": "data/served/2", "tensors": [{"source": "params/bias", "target": "params/bias", "shape": [6], "source_dtype": "float32", "target_dtype": "float32", "strategy": "whole", "nbytes": 24, "source_digest": "2d6fecff823e28f2", "target_digest": "2d6fecff823e28f2", "proof": "written", "cast": null}, {"source": "params/kernel", "target": "params/kernel", "shape": [64, 32], "source_dtype": "float32", "target_dtype": "float32", "strategy": "whole", "nbytes": 8192, "source_digest": "e604b63250c21298", "target_digest": "e604b63250c21298", "proof": "written", "cast": null}, {"source": "step", "target": "step", "shape": [], "source_dtype": "int32", "target_dtype": "int32", "strategy": "whole", "nbytes": 4, "source_digest": "bea416676c8ccc8b", "target_digest": "bea416676c8ccc8b", "proof": "written", "cast": null}], "nbytes": 8220, "read_bytes": 8232, "moved_bytes": 8220, "written_bytes": 8232, "seconds": 0.0964392029999317, "warnings": [], "resumed_bytes": 0, "already_done": false}]', 8232, 'null', 1, 'steps', NULL, NULL, false, 1795416337.044843, 1795416337.592604, 1795416338.2904162, 4);
INSERT INTO public.conversions (id, token, state, priority, request, source, progress, result, read_bytes, error, attempts, schedule, executor, claim, begun, created_at, started_at, ended_at, revision) VALUES ('01a2072726daa81b1ef36aa6ad11', 'ann', 'succeeded', 0, '{"target": "data/both", "layout": null, "mesh": "model=2", "select": [], "drop": [], "rename": [], "cast": [], "compression": "none", "chunk_bytes": null, "ocdbt": false, "style": null, "overwrite": false, "restart": false, "verify": "written", "source": "data/run/2", "max_memory": null, "workers": null, "priority": 0, "labels": {}}', 'data/run/2', '{"stage": "syncing", "moved_bytes": 8220, "total_bytes": 8220, "resumed_bytes": 0, "tasks_done": 3, "tasks": 3, "tensor": "", "bytes_per_second": 16414.53741754118, "seconds_left": 0.0}', '[{"command": "convert", "source": "data/run/2", "target": "data/both", "tensors": [{"source": "params/bias", "target": "params/bias", "shape": [6], "source_dtype": "float32", "target_dtype": "float32", "strategy": "whole", "nbytes": 24, "source_digest": "2d6fecff823e28f2", "target_digest": "2d6fecff823e28f2", "proof": "written", "cast": null}, {"source": "params/kernel", "target": "params/kernel", "shape": [64, 32], "source_dtype": "float32", "target_dtype": "float32", "strategy": "whole", "nbytes": 8192, "source_digest": "e604b63250c21298", "target_digest": "e604b63250c21298", "proof": "written", "cast": null}, {"source": "step", "target": "step", "shape": [], "source_dtype": "int32", "target_dtype": "int32", "strategy": "whole", "nbytes": 4, "source_digest": "bea416676c8ccc8b", "target_digest": "bea416676c8ccc8b", "proof": "written", "cast": null}], "nbytes": 8220, "read_bytes": 8232, "moved_bytes": 8220, "written_bytes": 8232, "seconds": 0.07296009399999548, "warnings": [], "resumed_bytes": 0, "already_done": false}]', 8232, 'null', 1, NULL, NULL, NULL, false, 1795416336.090533, 1795416336.107198, 1795416336.7074854, 4);
INSERT INTO public.conversions (id, token, state, priority, request, source, progress, result, read_bytes, error, attempts, schedule, executor, claim, begun, created_at, started_at, ended_at, revision) VALUES ('01a207273933a0c99d6fd62a74a3', 'ann', 'running', 0, '{"target": "data/running", "layout": null, "mesh": "model=2", "select": [], "drop": [], "rename": [], "cast": [], "compression": "zstd:9", "chunk_bytes": null, "ocdbt": false, "style": null, "overwrite": false, "restart": false, "verify": "written", "source": "data/large", "max_memory": null, "workers": null, "priority": 0, "labels": {}}', 'data/large', '{"stage": "copying", "moved_bytes": 234881024, "total_bytes": 671088640, "resumed_bytes": 0, "tasks_done": 1, "tasks": 3, "tensor": "w", "bytes_per_second": null, "seconds_left": null}', NULL, NULL, NULL, 1, NULL, '64704e28eb504347b8203cf525c532f4', 'dfcb294bd4a43fc773e88202c2f31906', true, 1795416340.787165, 1795416340.7995994, NULL, 4);
INSERT INTO public.conversions (id, token, state, priority, request, source, progress, result, read_bytes, error, attempts, schedule, executor, claim, begun, created_at, started_at, ended_at, revision) VALUES ('01a207274987802d7c56265e91ca', 'ann', 'queued', 5, '{"source": "data/run/1", "max_memory": null, "workers": null, "priority": 5, "labels": {}, "targets": [{"target": "data/q1", "layout": "serving", "mesh": null, "select": [], "drop": [], "rename": [], "cast": [], "compression": "none", "chunk_bytes": null, "ocdbt": false, "style": null, "overwrite": false, "restart": false, "verify": "written"}, {"target": "data/q2", "layout": null, "mesh": null, "select": [], "drop": [], "rename": [], "cast": [["params", "bfloat16"]], "compression": "none", "chunk_bytes": null, "ocdbt": false, "style": null, "overwrite": false, "restart": false, "verify": "written"}]}', 'data/run/1', NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, false, 1795416344.967003, NULL, NULL, 1);
INSERT INTO public.conversions (id, token, state, priority, request, source, progress, result, read_bytes, error, attempts, schedule, executor, claim, begun, created_at, started_at, ended_at, revision) VALUES ('01a207272a7c34ab85cde776e527', 'ann', 'succeeded', 0, '{"target": "data/served/1", "layout": "serving", "mesh": null, "select": [], "drop": [], "rename": [], "cast": [], "compression": "none", "chunk_bytes": null, "ocdbt": false, "style": null, "overwrite": false, "restart": false, "verify": "written", "source": "data/run/1", "max_memory": null, "workers": null, "priority": 0, "labels": {"schedule": "steps", "step": "1"}}', 'data/run/1', '{"stage": "syncing", "moved_bytes": 8220, "total_bytes": 8220, "resumed_bytes": 0, "tasks_done": 3, "tasks": 3, "tensor": "", "bytes_per_second": 12162.34295351297, "seconds_left": 0.0}', '[{"command": "convert", "source": "data/run/1", "target": "data/served/1", "tensors": [{"source": "params/bias", "target": "params/bias", "shape": [6], "source_dtype": "float32", "target_dtype": "float32", "strategy": "whole", "nbytes": 24, "source_digest": "2d6fecff823e28f2", "target_digest": "2d6fecff823e28f2", "proof": "written", "cast": null}, {"source": "params/kernel", "target": "params/kernel", "shape": [64, 32], "source_dtype": "float32", "target_dtype": "float32", "strategy": "whole", "nbytes": 8192, "source_digest": "e604b63250c21298", "target_digest": "e604b63250c21298", "proof": "written", "cast": null}, {"source": "step", "target": "step", "shape": [], "source_dtype": "int32", "target_dtype": "int32", "strategy": "whole", "nbytes": 4, "source_digest": "bea416676c8ccc8b", "target_digest": "bea416676c8ccc8b", "proof": "written", "cast": null}], "nbytes": 8220, "read_bytes": 8232, "moved_bytes": 8220, "written_bytes": 8232, "seconds": 0.06846243500001492, "warnings": [], "resumed_bytes": 0, "already_done": false}]', 8232, 'null', 1, 'steps', NULL, NULL, true, 1795416337.020092, 1795416337.0369616, 1795416337.5811284, 5);
INSERT INTO public.conversions (id, token, state, priority, request, source, progress, result, read_bytes, error, attempts, schedule, executor, claim, begun, created_at, started_at, ended_at, revision) VALUES ('01a20727498f0a788a9d288c1525', 'ann', 'queued', 0, '{"target": "data/queued", "layout": "serving", "mesh": null, "select": [], "drop": [], "rename": [["^params/", "model/"]], "cast": [], "compression": "none", "chunk_bytes": null, "ocdbt": false, "style": null, "overwrite": false, "restart": false, "verify": "written", "source": "data/run/2", "max_memory": null, "workers": null, "priority": 0, "labels": {}}', 'data/run/2', NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, false, 1795416344.97512, NULL, NULL, 1);
INSERT INTO public.ended_totals (state, within_seconds, conversions, seconds, moved_bytes) VALUES ('failed', 1, 1, 0.7394413948059082, 0);
INSERT INTO public.ended_totals (state, within_seconds, conversions, seconds, moved_bytes) VALUES ('succeeded', 1, 4, 2.4300434589385986, 32880);
INSERT INTO public.executors (id, host, pid, heartbeat_at) VALUES ('64704e28eb504347b8203cf525c532f4', 'host-1', 10542, 1795416344.368131);
INSERT INTO public.idempotency (token, key, request_hash, conversion, created_at) VALUES ('ann', 'data/done', '94e5723c39ffb37af18a5a659663f25d6209edcddd9889f2b87e54643343af6b', '01a2072721479d41d4b2ef95b335', 1795416334.6683874);
INSERT INTO public.idempotency (token, key, request_hash, conversion, created_at) VALUES ('ann', 'data/failed', '9345790d74f2d2575d7e6d422775a8af6e666f53945331835b1d4a68efb3c538', '01a2072723c57d174e4f48c0c0d4', 1795416335.3032033);
INSERT INTO public.idempotency (token, key, request_hash, conversion, created_at) VALUES ('ann', 'data/both', 'c739b6edce145f4a04d24132b082b15fba24775af93da9b3a9e9de573701a5d7', '01a2072726daa81b1ef36aa6ad11', 1795416336.092048);
INSERT INTO public.idempotency (token, key, request_hash, conversion, created_at) VALUES ('ann', 'data/running', '1cc1095d8018010c188ec947bfe5537cfb2ce9b51d4e1b34c35372bcc99e7c25', '01a207273933a0c99d6fd62a74a3', 1795416340.788439);
INSERT INTO public.idempotency (token, key, request_hash, conversion, created_at) VALUES ('ann', 'data/queued', 'c8d6e555f4285ae2201e5c057b713316d8ccf7fdf2ba53458ec2c3057849fddd', '01a20727498f0a788a9d288c1525', 1795416344.97608);
INSERT INTO public.layouts (name, version, layout, token, created_at, deleted) VALUES ('serving', 1, '{"mesh": {"axes": ["model"], "shape": [2]}, "rules": [{"match": "kernel", "axes": [null, "model"]}]}', 'ann', 1795416334.6340299, false);
INSERT INTO public.layouts (name, version, layout, token, created_at, deleted) VALUES ('serving', 2, '{"mesh": {"axes": ["model"], "shape": [4]}, "rules": [{"match": "kernel", "axes": [null, "model"]}]}', 'ann', 1795416334.651704, false);
INSERT INTO public.schedule_outputs (id, schedule, template, target, step, at, conversion, state, identity) VALUES ('87d488b09d1fab3f7272ce93458af62f86d3976ae94d4a67ba8ad2e51df6bf50', 'steps', 'data/served/{step}', 'data/served/1', 1, 1795416337.004063, '01a207272a7c34ab85cde776e527', 'made', '2163691-101a22bca279159a6849b3c7a1c0463885828d756e8bf258d4ef619c72725c4e');
INSERT INTO public.schedule_outputs (id, schedule, template, target, step, at, conversion, state, identity) VALUES ('7c8c5fba12a33c94c337e629ef7354a5da42a640b2a2b287c742046a9f35ff9b', 'steps', 'data/served/{step}', 'data/served/2', 2, 1795416337.004063, '01a207272a94d55b9da76cd377aa', 'made', '2163712-ad94c9c9f542dc75942c1da8bd95eb7793e0e21221d6e23e6f23e44ca4733b63');
INSERT INTO public.schedule_runs (schedule, key, step, at, outcome, conversion, detail, executor, claim, settled) VALUES ('steps', '1', 1, 1795416337.0238748, 'started', '01a207272a7c34ab85cde776e527', NULL, NULL, NULL, 1);
INSERT INTO public.schedule_runs (schedule, key, step, at, outcome, conversion, detail, executor, claim, settled) VALUES ('steps', '2', 2, 1795416337.0484817, 'started', '01a207272a94d55b9da76cd377aa', NULL, NULL, NULL, 1);
INSERT INTO public.schedules (name, schedule, paused, token, created_at, updated_at, next_at, revision) VALUES ('nightly', '{"when": {"cron": "0 3 * * *", "source": "data/run/2", "catch_up": false}, "targets": [{"target": "data/nightly/{time}", "layout": "serving", "mesh": null, "select": [], "drop": [], "rename": [], "cast": [], "compression": "none", "chunk_bytes": null, "ocdbt": false, "style": null, "overwrite": false, "restart": false, "verify": "written"}], "keep": 2, "priority": 0, "max_memory": null, "workers": null, "paused": false}', false, 'ann', 1795416336.7518897, 1795416336.7518897, 1795489200, 1);
INSERT INTO public.schedules (name, schedule, paused, token, created_at, updated_at, next_at, revision) VALUES ('steps', '{"when": {"directory": "data/run", "step_prefix": null, "step_digits": null, "every": 1, "first_step": 0, "newest_only": false, "poll_seconds": 0.2}, "targets": [{"target": "data/served/{step}", "layout": "serving", "mesh": null, "select": [], "drop": [], "rename": [], "cast": [], "compression": "none", "chunk_bytes": null, "ocdbt": false, "style": null, "overwrite": false, "restart": false, "verify": "written"}], "keep": null, "priority": 0, "max_memory": null, "workers": null, "paused": false}', false, 'ann', 1795416336.7681515, 1795416336.7681515, 1795416345.148595, 1);
ALTER TABLE ONLY public.conversion_labels
    ADD CONSTRAINT conversion_labels_pkey PRIMARY KEY (conversion, key);
ALTER TABLE ONLY public.conversions
    ADD CONSTRAINT conversions_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.ended_totals
    ADD CONSTRAINT ended_totals_pkey PRIMARY KEY (state, within_seconds);
ALTER TABLE ONLY public.executors
    ADD CONSTRAINT executors_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.idempotency
    ADD CONSTRAINT idempotency_pkey PRIMARY KEY (token, key);
ALTER TABLE ONLY public.layouts
    ADD CONSTRAINT layouts_pkey PRIMARY KEY (name, version);
ALTER TABLE ONLY public.schedule_holds
    ADD CONSTRAINT schedule_holds_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.schedule_outputs
    ADD CONSTRAINT schedule_outputs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.schedule_runs
    ADD CONSTRAINT schedule_runs_pkey PRIMARY KEY (schedule, key);
ALTER TABLE ONLY public.schedules
    ADD CONSTRAINT schedules_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.sessions
    ADD CONSTRAINT sessions_pkey PRIMARY KEY (key);
CREATE INDEX conversion_labels_by_value ON public.conversion_labels USING btree (key, value);
CREATE INDEX conversions_by_state ON public.conversions USING btree (state, created_at);
CREATE INDEX conversions_by_time ON public.conversions USING btree (created_at, id);
CREATE INDEX conversions_by_token ON public.conversions USING btree (token, created_at);
CREATE INDEX conversions_in_queue ON public.conversions USING btree (state, priority, created_at);
CREATE INDEX conversions_of_token_by_state ON public.conversions USING btree (token, state);
CREATE INDEX schedule_holds_by_conversion ON public.schedule_holds USING btree (conversion);
CREATE INDEX schedule_outputs_by_conversion ON public.schedule_outputs USING btree (conversion);
CREATE INDEX schedule_outputs_by_schedule ON public.schedule_outputs USING btree (schedule);
CREATE INDEX schedule_runs_by_time ON public.schedule_runs USING btree (schedule, at);
CREATE INDEX schedule_runs_to_settle ON public.schedule_runs USING btree (settled);
CREATE INDEX sessions_by_end ON public.sessions USING btree (expires_at);
CREATE INDEX sessions_by_token ON public.sessions USING btree (token_sha256, created_at);
