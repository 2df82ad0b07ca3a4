BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0001');
CREATE TABLE conversion_labels (
	conversion VARCHAR(64) NOT NULL, 
	"key" VARCHAR(64) NOT NULL, 
	value VARCHAR(256) NOT NULL, 
	PRIMARY KEY (conversion, "key")
);
CREATE TABLE conversions (
	id VARCHAR(64) NOT NULL, 
	token VARCHAR(64) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	priority INTEGER NOT NULL, 
	request JSON NOT NULL, 
	source TEXT NOT NULL, 
	progress JSON, 
	result JSON, 
	read_bytes BIGINT, 
	error JSON, 
	attempts INTEGER NOT NULL, 
	schedule VARCHAR(128), 
	executor VARCHAR(64), 
	claim VARCHAR(32), 
	begun BOOLEAN NOT NULL, 
	created_at FLOAT NOT NULL, 
	started_at FLOAT, 
	ended_at FLOAT, 
	revision BIGINT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "conversions" VALUES('01a226c0d5a50a0435953e55e913','ann','succeeded',0,'{"target": "data/succeeded", "source": "data/source"}','data/source',NULL,'[{"source": "source", "target": "succeeded", "tensors": [{"source": "params/layer_0/columns", "target": "params/layer_0/columns", "shape": [24, 16], "source_dtype": "float16", "target_dtype": "float16", "strategy": "whole", "nbytes": 768, "source_digest": "c838ccf66d45fe77", "target_digest": "c838ccf66d45fe77", "proof": "written", "cast": null}, {"source": "params/layer_0/rows", "target": "params/layer_0/rows", "shape": [16, 24], "source_dtype": "float32", "target_dtype": "float32", "strategy": "whole", "nbytes": 1536, "source_digest": "0840e9e13286532a", "target_digest": "0840e9e13286532a", "proof": "written", "cast": null}, {"source": "params/layer_1/columns", "target": "params/layer_1/columns", "shape": [24, 16], "source_dtype": "float16", "target_dtype": "float16", "strategy": "whole", "nbytes": 768, "source_digest": "e7556d4ebb6d080f", "target_digest": "e7556d4ebb6d080f", "proof": "written", "cast": null}, {"source": "params/layer_1/rows", "target": "params/layer_1/rows", "shape": [16, 24], "source_dtype": "float32", "target_dtype": "float32", "strategy": "whole", "nbytes": 1536, "source_digest": "14e1ffe25803895b", "target_digest": "14e1ffe25803895b", "proof": "written", "cast": null}, {"source": "params/layer_2/columns", "target": "params/layer_2/columns", "shape": [24, 16], "source_dtype": "float16", "target_dtype": "float16", "strategy": "whole", "nbytes": 768, "source_digest": "08b9bbc25285c7ba", "target_digest": "08b9bbc25285c7ba", "proof": "written", "cast": null}, {"source": "params/layer_2/rows", "target": "params/layer_2/rows", "shape": [16, 24], "source_dtype": "float32", "target_dtype": "float32", "strategy": "whole", "nbytes": 1536, "source_digest": "2c3eccd95a00945e", "target_digest": "2c3eccd95a00945e", "proof": "written", "cast": null}, {"source": "params/layer_3/columns", "target": "params/layer_3/columns", "shape": [24, 16], "source_dtype": "float16", "target_dtype": "float16", "strategy": "whole", "nbytes": 768, "source_digest": "efdcf71d52aad0f4", "target_digest": "efdcf71d52aad0f4", "proof": "written", "cast": null}, {"source": "params/layer_3/rows", "target": "params/layer_3/rows", "shape": [16, 24], "source_dtype": "float32", "target_dtype": "float32", "strategy": "whole", "nbytes": 1536, "source_digest": "83ec23a2931a22a1", "target_digest": "83ec23a2931a22a1", "proof": "written", "cast": null}, {"source": "params/layer_4/columns", "target": "params/layer_4/columns", "shape": [24, 16], "source_dtype": "float16", "target_dtype": "float16", "strategy": "whole", "nbytes": 768, "source_digest": "2ea2187bca9acd41", "target_digest": "2ea2187bca9acd41", "proof": "written", "cast": null}, {"source": "params/layer_4/rows", "target": "params/layer_4/rows", "shape": [16, 24], "source_dtype": "float32", "target_dtype": "float32", "strategy": "whole", "nbytes": 1536, "source_digest": "57bef012e2c8fbd7", "target_digest": "57bef012e2c8fbd7", "proof": "written", "cast": null}, {"source": "params/layer_5/columns", "target": "params/layer_5/columns", "shape": [24, 16], "source_dtype": "float16", "target_dtype": "float16", "strategy": "whole", "nbytes": 768, "source_digest": "097d6b7fb4e12373", "target_digest": "097d6b7fb4e12373", "proof": "written", "cast": null}, {"source": "params/layer_5/rows", "target": "params/layer_5/rows", "shape": [16, 24], "source_dtype": "float32", "target_dtype": "float32", "strategy": "whole", "nbytes": 1536, "source_digest": "bc13f74451437dd3", "target_digest": "bc13f74451437dd3", "proof": "written", "cast": null}, {"source": "step", "target": "step", "shape": [], "source_dtype": "int32", "target_dtype": "int32", "strategy": "whole", "nbytes": 4, "source_digest": "bea416676c8ccc8b", "target_digest": "bea416676c8ccc8b", "proof": "written", "cast": null}], "nbytes": 13828, "read_bytes": 13880, "moved_bytes": 13828, "written_bytes": 13880, "seconds": 0.03902382799969928, "warnings": [], "missing_chunks": {}, "resumed_bytes": 0, "already_done": false, "requests": null}]',NULL,'null',1,NULL,NULL,NULL,0,1.79594650154188203812e+09,1.79594650177210116387e+09,1.79594650177338838572e+09,4);
INSERT INTO "conversions" VALUES('01a226c0d5a9a2159d7b17f19611','ann','failed',0,'{"target": "data/failed", "source": "data/source"}','data/source',NULL,'null',NULL,'null',1,NULL,NULL,NULL,0,1.7959465015451440811e+09,1.79594650177789831157e+09,1.79594650177844285957e+09,4);
INSERT INTO "conversions" VALUES('01a226c0d5aaeff9647d685e09d3','ann','queued',0,'{"target": "data/first", "source": "data/source"}','data/source',NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,0,1.79594650154619407656e+09,NULL,NULL,1);
INSERT INTO "conversions" VALUES('01a226c0d5ab2ccc7c4a5b726b49','ann','queued',0,'{"target": "data/second", "source": "data/source"}','data/source',NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,0,1.79594650154705309874e+09,NULL,NULL,1);
CREATE TABLE ended_totals (
	state VARCHAR(16) NOT NULL, 
	within_seconds INTEGER NOT NULL, 
	conversions BIGINT NOT NULL, 
	seconds FLOAT NOT NULL, 
	moved_bytes BIGINT NOT NULL, 
	PRIMARY KEY (state, within_seconds)
);
INSERT INTO "ended_totals" VALUES('succeeded',1,1,1.2872219085693359375e-03,13828);
INSERT INTO "ended_totals" VALUES('failed',1,1,5.4454803466796875e-04,0);
CREATE TABLE executors (
	id VARCHAR(64) NOT NULL, 
	host VARCHAR(255) NOT NULL, 
	pid INTEGER NOT NULL, 
	heartbeat_at FLOAT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE idempotency (
	token VARCHAR(64) NOT NULL, 
	"key" VARCHAR(255) NOT NULL, 
	request_hash VARCHAR(64) NOT NULL, 
	conversion VARCHAR(64) NOT NULL, 
	created_at FLOAT NOT NULL, 
	PRIMARY KEY (token, "key")
);
CREATE TABLE layouts (
	name VARCHAR(128) NOT NULL, 
	version INTEGER NOT NULL, 
	layout JSON NOT NULL, 
	token VARCHAR(64) NOT NULL, 
	created_at FLOAT NOT NULL, 
	deleted BOOLEAN NOT NULL, 
	bytes BIGINT, 
	PRIMARY KEY (name, version)
);
CREATE TABLE maps (
	name VARCHAR(128) NOT NULL, 
	version INTEGER NOT NULL, 
	map JSON NOT NULL, 
	token VARCHAR(64) NOT NULL, 
	created_at FLOAT NOT NULL, 
	deleted BOOLEAN NOT NULL, 
	bytes BIGINT, 
	PRIMARY KEY (name, version)
);
CREATE TABLE schedule_forgotten (
	schedule VARCHAR(128) NOT NULL, 
	steps JSON NOT NULL, 
	PRIMARY KEY (schedule)
);
CREATE TABLE schedule_holds (
	id VARCHAR(32) NOT NULL, 
	path TEXT NOT NULL, 
	executor VARCHAR(64) NOT NULL, 
	conversion VARCHAR(64), 
	PRIMARY KEY (id)
);
CREATE TABLE schedule_outputs (
	id VARCHAR(64) NOT NULL, 
	schedule VARCHAR(128) NOT NULL, 
	template TEXT NOT NULL, 
	target TEXT NOT NULL, 
	step BIGINT, 
	at FLOAT NOT NULL, 
	conversion VARCHAR(64) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	identity VARCHAR(128), 
	PRIMARY KEY (id)
);
CREATE TABLE schedule_runs (
	schedule VARCHAR(128) NOT NULL, 
	"key" VARCHAR(128) NOT NULL, 
	step BIGINT, 
	at FLOAT NOT NULL, 
	outcome VARCHAR(16) NOT NULL, 
	conversion VARCHAR(64), 
	detail TEXT, 
	executor VARCHAR(64), 
	claim VARCHAR(32), 
	settled INTEGER NOT NULL, 
	PRIMARY KEY (schedule, "key")
);
CREATE TABLE schedules (
	name VARCHAR(128) NOT NULL, 
	schedule JSON NOT NULL, 
	paused BOOLEAN NOT NULL, 
	token VARCHAR(64) NOT NULL, 
	created_at FLOAT NOT NULL, 
	updated_at FLOAT NOT NULL, 
	next_at FLOAT, 
	revision BIGINT NOT NULL, 
	bytes BIGINT, 
	PRIMARY KEY (name)
);
CREATE TABLE sessions (
	"key" VARCHAR(64) NOT NULL, 
	token VARCHAR(64) NOT NULL, 
	token_sha256 VARCHAR(64) NOT NULL, 
	created_at FLOAT NOT NULL, 
	expires_at FLOAT NOT NULL, 
	PRIMARY KEY ("key")
);
CREATE TABLE turns (
	token VARCHAR(64) NOT NULL, 
	number BIGINT NOT NULL, 
	PRIMARY KEY (token)
);
CREATE INDEX conversions_by_schedule ON conversions (schedule, created_at);
CREATE INDEX conversions_in_queue ON conversions (state, priority, created_at);
CREATE INDEX conversions_by_time ON conversions (created_at, id);
CREATE INDEX conversions_by_state ON conversions (state, created_at);
CREATE INDEX conversions_of_token_by_state ON conversions (token, state);
CREATE INDEX conversions_by_token ON conversions (token, created_at);
CREATE INDEX conversion_labels_by_value ON conversion_labels ("key", value);
CREATE INDEX layouts_in_quota ON layouts (deleted, token, name, bytes);
CREATE INDEX maps_in_quota ON maps (deleted, token, name, bytes);
CREATE INDEX schedules_in_quota ON schedules (token, bytes);
CREATE INDEX schedule_runs_to_settle ON schedule_runs (settled);
CREATE INDEX schedule_runs_by_time ON schedule_runs (schedule, at);
CREATE INDEX schedule_outputs_by_conversion ON schedule_outputs (conversion);
CREATE INDEX schedule_outputs_by_schedule ON schedule_outputs (schedule);
CREATE INDEX schedule_holds_by_conversion ON schedule_holds (conversion);
CREATE INDEX sessions_by_end ON sessions (expires_at);
CREATE INDEX sessions_by_token ON sessions (token_sha256, created_at);
COMMIT;
