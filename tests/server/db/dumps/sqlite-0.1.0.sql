BEGIN TRANSACTION;
CREATE TABLE conversion_labels (
	conversion VARCHAR(64) NOT NULL, 
	"key" VARCHAR(64) NOT NULL, 
	value VARCHAR(256) NOT NULL, 
	PRIMARY KEY (conversion, "key")
);
INSERT INTO "conversion_labels" VALUES('01a20726bdddeb2b68bc0dcea220','team','eval');
INSERT INTO "conversion_labels" VALUES('01a20726ca8ff49c2863e0181d65','schedule','steps');
INSERT INTO "conversion_labels" VALUES('01a20726ca8ff49c2863e0181d65','step','1');
INSERT INTO "conversion_labels" VALUES('01a20726cab4cc96882f31a54a4d','schedule','steps');
INSERT INTO "conversion_labels" VALUES('01a20726cab4cc96882f31a54a4d','step','2');
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
INSERT INTO "conversions" VALUES('01a20726bdddeb2b68bc0dcea220','ann','succeeded',0,'{"target": "data/done", "layout": "serving@1", "mesh": null, "select": [], "drop": [], "rename": [], "cast": [], "compression": "none", "chunk_bytes": null, "ocdbt": false, "style": null, "overwrite": false, "restart": false, "verify": "written", "source": "data/run/1", "max_memory": null, "workers": null, "priority": 0, "labels": {"team": "eval"}}','data/run/1','{"stage": "syncing", "moved_bytes": 8220, "total_bytes": 8220, "resumed_bytes": 0, "tasks_done": 3, "tasks": 3, "tensor": "", "bytes_per_second": 6182.631398498684, "seconds_left": 0.0}','[{"command": "convert", "source": "data/run/1", "target": "data/done", "tensors": [{"source": "params/bias", "target": "params/bias", "shape": [6], "source_dtype": "float32", "target_dtype": "float32", "strategy": "whole", "nbytes": 24, "source_digest": "2d6fecff823e28f2", "target_digest": "2d6fecff823e28f2", "proof": "written", "cast": null}, {"source": "params/kernel", "target": "params/kernel", "shape": [64, 32], "source_dtype": "float32", "target_dtype": "float32", "strategy": "whole", "nbytes": 8192, "source_digest": "e604b63250c21298", "target_digest": "e604b63250c21298", "proof": "written", "cast": null}, {"source": "step", "target": "step", "shape": [], "source_dtype": "int32", "target_dtype": "int32", "strategy": "whole", "nbytes": 4, "source_digest": "bea416676c8ccc8b", "target_digest": "bea416676c8ccc8b", "proof": "written", "cast": null}], "nbytes": 8220, "read_bytes": 8232, "moved_bytes": 8220, "written_bytes": 8232, "seconds": 0.12881050400005734, "warnings": [], "resumed_bytes": 0, "already_done": false}]',8232,'null',1,NULL,NULL,NULL,1,1.79541630921380805964e+09,1.79541630923409748074e+09,1.79541631032995510101e+09,5);
INSERT INTO "conversions" VALUES('01a20726c25583828e18b6662195','ann','failed',0,'{"target": "data/failed", "layout": null, "mesh": null, "select": ["nothing"], "drop": [], "rename": [], "cast": [], "compression": "none", "chunk_bytes": null, "ocdbt": false, "style": null, "overwrite": false, "restart": false, "verify": "readback", "source": "data/run/1", "max_memory": null, "workers": null, "priority": 0, "labels": {}}','data/run/1',NULL,'null',NULL,'{"type": "urn:reshard:problem:plan", "title": "The conversion makes no sense", "status": 422, "detail": "select ''nothing'' matches none of the 3 names it could apply to (params/bias, params/kernel, step); correct or remove it", "remedy": "correct or remove it", "error": "PlanError"}',1,NULL,NULL,NULL,0,1.79541631035766410828e+09,1.7954163103729727268e+09,1.79541631124836683275e+09,4);
INSERT INTO "conversions" VALUES('01a20726c5e05f9793d80ec970e5','ann','succeeded',0,'{"target": "data/both", "layout": null, "mesh": "model=2", "select": [], "drop": [], "rename": [], "cast": [], "compression": "none", "chunk_bytes": null, "ocdbt": false, "style": null, "overwrite": false, "restart": false, "verify": "written", "source": "data/run/2", "max_memory": null, "workers": null, "priority": 0, "labels": {}}','data/run/2','{"stage": "syncing", "moved_bytes": 8220, "total_bytes": 8220, "resumed_bytes": 0, "tasks_done": 3, "tasks": 3, "tensor": "", "bytes_per_second": 7383.045311114448, "seconds_left": 0.0}','[{"command": "convert", "source": "data/run/2", "target": "data/both", "tensors": [{"source": "params/bias", "target": "params/bias", "shape": [6], "source_dtype": "float32", "target_dtype": "float32", "strategy": "whole", "nbytes": 24, "source_digest": "2d6fecff823e28f2", "target_digest": "2d6fecff823e28f2", "proof": "written", "cast": null}, {"source": "params/kernel", "target": "params/kernel", "shape": [64, 32], "source_dtype": "float32", "target_dtype": "float32", "strategy": "whole", "nbytes": 8192, "source_digest": "e604b63250c21298", "target_digest": "e604b63250c21298", "proof": "written", "cast": null}, {"source": "step", "target": "step", "shape": [], "source_dtype": "int32", "target_dtype": "int32", "strategy": "whole", "nbytes": 4, "source_digest": "bea416676c8ccc8b", "target_digest": "bea416676c8ccc8b", "proof": "written", "cast": null}], "nbytes": 8220, "read_bytes": 8232, "moved_bytes": 8220, "written_bytes": 8232, "seconds": 0.1208138350000354, "warnings": [], "resumed_bytes": 0, "already_done": false}]',8232,'null',1,NULL,NULL,NULL,1,1.79541631126412510872e+09,1.79541631127623677252e+09,1.79541631233517765993e+09,5);
INSERT INTO "conversions" VALUES('01a20726ca8ff49c2863e0181d65','ann','succeeded',0,'{"target": "data/served/1", "layout": "serving", "mesh": null, "select": [], "drop": [], "rename": [], "cast": [], "compression": "none", "chunk_bytes": null, "ocdbt": false, "style": null, "overwrite": false, "restart": false, "verify": "written", "source": "data/run/1", "max_memory": null, "workers": null, "priority": 0, "labels": {"schedule": "steps", "step": "1"}}','data/run/1','{"stage": "syncing", "moved_bytes": 8220, "total_bytes": 8220, "resumed_bytes": 0, "tasks_done": 3, "tasks": 3, "tensor": "", "bytes_per_second": 8566.24599242101, "seconds_left": 0.0}','[{"command": "convert", "source": "data/run/1", "target": "data/served/1", "tensors": [{"source": "params/bias", "target": "params/bias", "shape": [6], "source_dtype": "float32", "target_dtype": "float32", "strategy": "whole", "nbytes": 24, "source_digest": "2d6fecff823e28f2", "target_digest": "2d6fecff823e28f2", "proof": "written", "cast": null}, {"source": "params/kernel", "target": "params/kernel", "shape": [64, 32], "source_dtype": "float32", "target_dtype": "float32", "strategy": "whole", "nbytes": 8192, "source_digest": "e604b63250c21298", "target_digest": "e604b63250c21298", "proof": "written", "cast": null}, {"source": "step", "target": "step", "shape": [], "source_dtype": "int32", "target_dtype": "int32", "strategy": "whole", "nbytes": 4, "source_digest": "bea416676c8ccc8b", "target_digest": "bea416676c8ccc8b", "proof": "written", "cast": null}], "nbytes": 8220, "read_bytes": 8232, "moved_bytes": 8220, "written_bytes": 8232, "seconds": 0.09678634199997305, "warnings": [], "resumed_bytes": 0, "already_done": false}]',8232,'null',1,'steps',NULL,NULL,0,1.79541631246314907074e+09,1.79541631249079108238e+09,1.79541631320213270189e+09,4);
INSERT INTO "conversions" VALUES('01a20726cab4cc96882f31a54a4d','ann','succeeded',0,'{"target": "data/served/2", "layout": "serving", "mesh": null, "select": [], "drop": [], "rename": [], "cast": [], "compression": "none", "chunk_bytes": null, "ocdbt": false, "style": null, "overwrite": false, "restart": false, "verify": "written", "source": "data/run/2", "max_memory": null, "workers": null, "priority": 0, "labels": {"schedule": "steps", "step": "2"}}','data/run/2','{"stage": "syncing", "moved_bytes": 8220, "total_bytes": 8220, "resumed_bytes": 0, "tasks_done": 3, "tasks": 3, "tensor": "", "bytes_per_second": 6151.251812628809, "seconds_left": 0.0}','[{"command": "convert", "source": "data/run/2", "target": "data/served/2", "tensors": [{"source": "params/bias", "target": "params/bias", "shape": [6], "source_dtype": "float32", "target_dtype": "float32", "strategy": "whole", "nbytes": 24, "source_digest": "2d6fecff823e28f2", "target_digest": "2d6fecff823e28f2", "proof": "written", "cast": null}, {"source": "params/kernel", "target": "params/kernel", "shape": [64, 32], "source_dtype": "float32", "target_dtype": "float32", "strategy": "whole", "nbytes": 8192, "source_digest": "e604b63250c21298", "target_digest": "e604b63250c21298", "proof": "written", "cast": null}, {"source": "step", "target": "step", "shape": [], "source_dtype": "int32", "target_dtype": "int32", "strategy": "whole", "nbytes": 4, "source_digest": "bea416676c8ccc8b", "target_digest": "bea416676c8ccc8b", "proof": "written", "cast": null}], "nbytes": 8220, "read_bytes": 8232, "moved_bytes": 8220, "written_bytes": 8232, "seconds": 0.1108096939999541, "warnings": [], "resumed_bytes": 0, "already_done": false}]',8232,'null',1,'steps',NULL,NULL,0,1.79541631250033688546e+09,1.79541631320875215535e+09,1.79541631387792062759e+09,4);
INSERT INTO "conversions" VALUES('01a20726d9fb02ddb45c9727471a','ann','running',0,'{"target": "data/running", "layout": null, "mesh": "model=2", "select": [], "drop": [], "rename": [], "cast": [], "compression": "zstd:9", "chunk_bytes": null, "ocdbt": false, "style": null, "overwrite": false, "restart": false, "verify": "written", "source": "data/large", "max_memory": null, "workers": null, "priority": 0, "labels": {}}','data/large','{"stage": "copying", "moved_bytes": 234881024, "total_bytes": 671088640, "resumed_bytes": 0, "tasks_done": 1, "tasks": 3, "tensor": "w", "bytes_per_second": null, "seconds_left": null}',NULL,NULL,NULL,1,NULL,'89901c86960f432faebbf685df3b4184','a2e75a82d4dc62229d438096645df42a',1,1795416316.4111,1.79541631643688106537e+09,NULL,4);
INSERT INTO "conversions" VALUES('01a20726f4380ccd7ccddccd85c9','ann','queued',5,'{"source": "data/run/1", "max_memory": null, "workers": null, "priority": 5, "labels": {}, "targets": [{"target": "data/q1", "layout": "serving", "mesh": null, "select": [], "drop": [], "rename": [], "cast": [], "compression": "none", "chunk_bytes": null, "ocdbt": false, "style": null, "overwrite": false, "restart": false, "verify": "written"}, {"target": "data/q2", "layout": null, "mesh": null, "select": [], "drop": [], "rename": [], "cast": [["params", "bfloat16"]], "compression": "none", "chunk_bytes": null, "ocdbt": false, "style": null, "overwrite": false, "restart": false, "verify": "written"}]}','data/run/1',NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,0,1795416323.12893,NULL,NULL,1);
INSERT INTO "conversions" VALUES('01a20726f44a1d5e559f0f7cf701','ann','queued',0,'{"target": "data/queued", "layout": "serving", "mesh": null, "select": [], "drop": [], "rename": [["^params/", "model/"]], "cast": [], "compression": "none", "chunk_bytes": null, "ocdbt": false, "style": null, "overwrite": false, "restart": false, "verify": "written", "source": "data/run/2", "max_memory": null, "workers": null, "priority": 0, "labels": {}}','data/run/2',NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,0,1.79541632314630103116e+09,NULL,NULL,1);
CREATE TABLE ended_totals (
	state VARCHAR(16) NOT NULL, 
	within_seconds INTEGER NOT NULL, 
	conversions BIGINT NOT NULL, 
	seconds FLOAT NOT NULL, 
	moved_bytes BIGINT NOT NULL, 
	PRIMARY KEY (state, within_seconds)
);
INSERT INTO "ended_totals" VALUES('succeeded',5,2,2.1547985076904296875e+00,16440);
INSERT INTO "ended_totals" VALUES('failed',1,1,8.75394105911254882812e-01,0);
INSERT INTO "ended_totals" VALUES('succeeded',1,2,1.38051009178161621093e+00,16440);
CREATE TABLE executors (
	id VARCHAR(64) NOT NULL, 
	host VARCHAR(255) NOT NULL, 
	pid INTEGER NOT NULL, 
	heartbeat_at FLOAT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "executors" VALUES('89901c86960f432faebbf685df3b4184','host-1',10223,1795416323.027);
CREATE TABLE idempotency (
	token VARCHAR(64) NOT NULL, 
	"key" VARCHAR(255) NOT NULL, 
	request_hash VARCHAR(64) NOT NULL, 
	conversion VARCHAR(64) NOT NULL, 
	created_at FLOAT NOT NULL, 
	PRIMARY KEY (token, "key")
);
INSERT INTO "idempotency" VALUES('ann','data/done','94e5723c39ffb37af18a5a659663f25d6209edcddd9889f2b87e54643343af6b','01a20726bdddeb2b68bc0dcea220',1.79541630921642947197e+09);
INSERT INTO "idempotency" VALUES('ann','data/failed','9345790d74f2d2575d7e6d422775a8af6e666f53945331835b1d4a68efb3c538','01a20726c25583828e18b6662195',1.79541631035863614085e+09);
INSERT INTO "idempotency" VALUES('ann','data/both','c739b6edce145f4a04d24132b082b15fba24775af93da9b3a9e9de573701a5d7','01a20726c5e05f9793d80ec970e5',1.79541631126500582696e+09);
INSERT INTO "idempotency" VALUES('ann','data/running','1cc1095d8018010c188ec947bfe5537cfb2ce9b51d4e1b34c35372bcc99e7c25','01a20726d9fb02ddb45c9727471a',1795416316.41208);
INSERT INTO "idempotency" VALUES('ann','data/queued','c8d6e555f4285ae2201e5c057b713316d8ccf7fdf2ba53458ec2c3057849fddd','01a20726f44a1d5e559f0f7cf701',1.79541632314703965191e+09);
CREATE TABLE layouts (
	name VARCHAR(128) NOT NULL, 
	version INTEGER NOT NULL, 
	layout JSON NOT NULL, 
	token VARCHAR(64) NOT NULL, 
	created_at FLOAT NOT NULL, 
	deleted BOOLEAN NOT NULL, 
	PRIMARY KEY (name, version)
);
INSERT INTO "layouts" VALUES('serving',1,'{"mesh": {"axes": ["model"], "shape": [2]}, "rules": [{"match": "kernel", "axes": [null, "model"]}]}','ann',1.79541630917522644994e+09,0);
INSERT INTO "layouts" VALUES('serving',2,'{"mesh": {"axes": ["model"], "shape": [4]}, "rules": [{"match": "kernel", "axes": [null, "model"]}]}','ann',1.79541630918699979778e+09,0);
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
INSERT INTO "schedule_outputs" VALUES('87d488b09d1fab3f7272ce93458af62f86d3976ae94d4a67ba8ad2e51df6bf50','steps','data/served/{step}','data/served/1',1,1.79541631243253135678e+09,'01a20726ca8ff49c2863e0181d65','made','2157178-ae6cdb5933d1dc7819aec5f3e19eb7fbf5e17686ed3b4689d5249f65f7d11804');
INSERT INTO "schedule_outputs" VALUES('7c8c5fba12a33c94c337e629ef7354a5da42a640b2a2b287c742046a9f35ff9b','steps','data/served/{step}','data/served/2',2,1.79541631243253135678e+09,'01a20726cab4cc96882f31a54a4d','made','2157166-0ec65680ffefaabc70a0011407db666163ccfc7c2ac98a5e079eb48aa223d8e7');
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
INSERT INTO "schedule_runs" VALUES('steps','1',1,1.79541631246594738961e+09,'started','01a20726ca8ff49c2863e0181d65',NULL,NULL,NULL,1);
INSERT INTO "schedule_runs" VALUES('steps','2',2,1.7954163125048472881e+09,'started','01a20726cab4cc96882f31a54a4d',NULL,NULL,NULL,1);
CREATE TABLE schedules (
	name VARCHAR(128) NOT NULL, 
	schedule JSON NOT NULL, 
	paused BOOLEAN NOT NULL, 
	token VARCHAR(64) NOT NULL, 
	created_at FLOAT NOT NULL, 
	updated_at FLOAT NOT NULL, 
	next_at FLOAT, 
	revision BIGINT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "schedules" VALUES('nightly','{"when": {"cron": "0 3 * * *", "source": "data/run/2", "catch_up": false}, "targets": [{"target": "data/nightly/{time}", "layout": "serving", "mesh": null, "select": [], "drop": [], "rename": [], "cast": [], "compression": "none", "chunk_bytes": null, "ocdbt": false, "style": null, "overwrite": false, "restart": false, "verify": "written"}], "keep": 2, "priority": 0, "max_memory": null, "workers": null, "paused": false}',0,'ann',1.79541631237554740905e+09,1.79541631237554740905e+09,1795489200.0,1);
INSERT INTO "schedules" VALUES('steps','{"when": {"directory": "data/run", "step_prefix": null, "step_digits": null, "every": 1, "first_step": 0, "newest_only": false, "poll_seconds": 0.2}, "targets": [{"target": "data/served/{step}", "layout": "serving", "mesh": null, "select": [], "drop": [], "rename": [], "cast": [], "compression": "none", "chunk_bytes": null, "ocdbt": false, "style": null, "overwrite": false, "restart": false, "verify": "written"}], "keep": null, "priority": 0, "max_memory": null, "workers": null, "paused": false}',0,'ann',1.79541631239146566396e+09,1.79541631239146566396e+09,1.79541632303569960588e+09,1);
CREATE TABLE sessions (
	"key" VARCHAR(64) NOT NULL, 
	token VARCHAR(64) NOT NULL, 
	token_sha256 VARCHAR(64) NOT NULL, 
	created_at FLOAT NOT NULL, 
	expires_at FLOAT NOT NULL, 
	PRIMARY KEY ("key")
);
CREATE INDEX conversions_by_state ON conversions (state, created_at);
CREATE INDEX conversions_by_time ON conversions (created_at, id);
CREATE INDEX conversions_by_token ON conversions (token, created_at);
CREATE INDEX conversions_of_token_by_state ON conversions (token, state);
CREATE INDEX conversions_in_queue ON conversions (state, priority, created_at);
CREATE INDEX conversion_labels_by_value ON conversion_labels ("key", value);
CREATE INDEX schedule_runs_to_settle ON schedule_runs (settled);
CREATE INDEX schedule_runs_by_time ON schedule_runs (schedule, at);
CREATE INDEX schedule_outputs_by_schedule ON schedule_outputs (schedule);
CREATE INDEX schedule_outputs_by_conversion ON schedule_outputs (conversion);
CREATE INDEX schedule_holds_by_conversion ON schedule_holds (conversion);
CREATE INDEX sessions_by_token ON sessions (token_sha256, created_at);
CREATE INDEX sessions_by_end ON sessions (expires_at);
COMMIT;
