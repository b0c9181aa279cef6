# ruff: noqa
"""The moves of the rebuilt house, made once and repeatable: `python .ci/moves.py` in a checkout of the commit before.

The table is house-moves.md with what is to be folded later in the room of its target; then imports, paths and links
are rewritten, and what no pattern knows: depths of paths, fixtures' homes, lists of folders. ruff sorts and formats after.
"""
# old path -> new path (files); built from ../shared/house-moves.md, the folded ones in the room of their target
T={}
def room(new, old, **names):
    for k,v in names.items(): T[f"{old}/{k}.py"]=f"{new}/{v or k}.py"
D="deployments"
T.update({"deployments/main.py":"deployments/cli/main.py","deployments/cli.py":"deployments/cli/cli.py","deployments/console.py":"deployments/cli/console.py",
"deployments/local_flow.py":"deployments/cli/flow.py","deployments/store_argument.py":"deployments/cli/arguments.py","deployments/model_options.py":"deployments/cli/model_options.py",
"deployments/job_record.py":"deployments/cli/job_record.py"})
for v in "__init__ check demo export probe publish render retry run show status up verify extend".split(): T[f"deployments/verbs/{v}.py"]=f"deployments/cli/verbs/{v}.py"
T.update({"deployments/seaweed.py":"deployments/local/seaweed.py","deployments/demo/home.py":"deployments/local/demo.py","deployments/stack/home.py":"deployments/local/folder.py",
"deployments/stack/local.py":"deployments/local/stack.py","deployments/stack/forms.py":"deployments/local/forms.py","deployments/stack/processes.py":"deployments/local/child.py",
"deployments/presets.py":"deployments/local/presets.py","deployments/server_settings.py":"deployments/local/server_settings.py","deployments/demo/prompts.jsonl":"deployments/local/prompts.jsonl",
"deployments/stack/__init__.py":"deployments/local/__init__.py"})
room("tasks/audit","tasks/storage",audit="reread",audit_rows="checks",audit_files="files",audit_report="report",sample="",audit_sources="sources",orphans="")
room("tasks/audit","tasks",rescoring="",likelihood="",auditing="audit"); room("tasks/audit","tasks/serving",scorer="")
room("tasks/dataset","tasks/storage",shard="",shard_reader="",peek="some_rows",reader="training_reader",damage=""); room("tasks/dataset","tasks",stored="")
room("tasks/export","tasks/storage/trainers",__init__="",export="",options="",manifest="",order="",masks="",formats="",arrow="",files="",pinned="",example="",lengths="",frequencies="",jsonl="",parquet="",columns="",parts="",tally="",torch_file="")
room("tasks/export","tasks",exporting="open",telling="conversations"); room("tasks/export","tasks/tokens",told="")
room("tasks/fleet","tasks/serving",ensure="",server="",fleet="",watch="",attempts="",window="",dispatch="",lanes="quarantine",climb="",placing="")
room("tasks/grammar","tasks/tokens",__init__="",states="",rules="",families="",discover="",grammar="",scan="",walk="",check="",given="overrides",integrity="",foreign="foreign_rows"); room("tasks/grammar","tasks",judging="foreign")
room("tasks/job","tasks",spec="",sections="",prompts="places",jobfile="",store_section="")
room("tasks/ledger","tasks/storage",batch="",plan="",receipt="",ledger="",journal="",journal_writer="",frames="",keeper="",lease="fence",journal_parts="journal_copies",fingerprint="",server_lock="",journal_folder="",noted_servers="")
room("tasks/prompts","tasks/storage",record="",source="sources",source_opening="opening",finding="files",s3_source="s3_files",mixture="interleave",sameness="duplicates",planning="plan_batches",jsonl_source="jsonl",parquet_source="parquet",hf_source="hub",exclusion="")
room("tasks/report","tasks/reporting",__init__="",measured="",retokenized="",drawing="",numbers="",page="",index="",difference="",templates="",card="",code_version="",sample="",summary=""); room("tasks/report","tasks",publishing="publish")
room("tasks/rows","tasks",records="",verdicts=""); room("tasks/rows","tasks/tokens",rowid="row_id"); room("tasks/rows","tasks/storage",duplicates="repeats",hash_set="",shelf="")
room("tasks/run","tasks",run="",batches="batch",committing="commit",retrying="retry",spreading="ranges",rendering="",report="progress",live="tables",lane="batch_rows",maintaining="maintain",probing="",preview="",byte_gate="limits",processes="",memory="",collector="")
room("tasks/sglang","tasks/serving",__init__="",protocol="",info="",outcomes="",client="",gates="",judge="",probe="",settings="",exchange="wire",scoring="",idlist="")
room("tasks/sglang/restart","tasks/serving",restart="",process="",stop="",parser_off="restart_policy",idle="",revive="")
room("tasks/store","tasks/storage",__init__="",store="contract",folder_store="folder",s3_store="s3",s3_client="",s3_parts="",s3_errors="s3_failures",store_probe="probe",folder_lock="disk",retry_command="commands",new_object="",s3_staged="",s3_retry="",s3_probe="",store_findings="findings",opening="")
room("tasks/tokenizer","tasks/tokens",vocabulary="",guard="",dialect="",encoders="",messages="",template="",plain="")
room("tasks/turns","tasks/tokens",conversations="",turns="",next_turn="",replies="",calls="",continuation="",sampling="",inspect_row="",mixture="mix")
for j in("card.md.jinja","report.html.jinja"): pass
DOCS={"tasks/reporting/card.md.jinja":"tasks/report/card.md.jinja","tasks/reporting/report.html.jinja":"tasks/report/report.html.jinja",
"tasks/storage/README.md":"tasks/dataset/README.md","tasks/storage/trainers/README.md":"tasks/export/README.md","tasks/storage/trainers/pytorch.md":"tasks/export/pytorch.md",
"tasks/storage/trainers/specforge.md":"tasks/export/specforge.md","tasks/storage/trainers/speculators.md":"tasks/export/speculators.md","tasks/tokens/README.md":"tasks/grammar/README.md"}
T.update(DOCS)
import subprocess
for f in subprocess.run(["git","ls-files","deployments/standin/train"],capture_output=True,text=True).stdout.split(): T[f]=f.replace("deployments/standin/train","tests/standin_model")
# tests
def tests(new, old, names, suffix=".py"):
    for n in names.split():
        a,_,b=n.partition(":"); T[f"{old}/{a}{suffix}"]=f"{new}/{b or a}{suffix}"
tests("tests/support","tests","jobs stores tampering readable prefect_api")
S="tests/tasks/storage"
tests("tests/support",S,"ceph certificates fault_proxy conftest:small_jobs")
tests("tests/tasks/audit",S,"test_audit test_orphans")
tests("tests/tasks/ledger",S,"test_crashes crash_child test_journal test_lease:test_fence test_ledger test_ledger_bench test_server_lock")
tests("tests/tasks/store",S,"test_faults test_memory test_store test_store_probe test_seaweed")
tests("tests/tasks/dataset",S,"test_peek:test_some_rows test_reader:test_training_reader test_shard")
tests("tests/tasks/rows",S,"test_shelf"); tests("tests/tasks/rows","tests/tasks","test_records")
tests("tests/tasks/prompts",S,"test_source:test_sources test_source_duplicates:test_duplicates test_source_hf:test_hub test_source_mixture:test_interleave")
tests("tests/tasks/export",S+"/trainers","export_child test_docs test_export test_golden test_masks test_order test_resume test_to_s3")
V="tests/tasks/serving"
tests("tests/support",V,"embedded scripted conftest:servers")
tests("tests/tasks/fleet",V,"test_climb test_dispatch test_ensure test_faults test_outages test_soak"); T[V+"/soak.md"]="tests/tasks/fleet/soak.md"
tests("tests/tasks/sglang",V,"test_exchange:test_wire test_protocol test_restart")
K="tests/tasks/tokens"
tests("tests/support",K,"answers model_folders packed sketches talk conftest:families"); T[K+"/kimi/tokenization_port.py"]="tests/support/kimi/tokenization_port.py"
tests("tests/tasks/turns",K,"test_calls test_continuation test_prefix_property test_sampling test_turns")
tests("tests/tasks/grammar",K,"test_check_rate test_families test_foreign:test_foreign_rows test_given_grammar:test_overrides test_laws test_spelled test_verdicts")
tests("tests/tasks/tokenizer",K,"test_golden_prompts test_guard test_injection test_standin_vocabulary test_template")
t="tests/tasks"
tests("tests/tasks/report",t,"test_code_version test_publishing:test_publish test_report:test_summary test_report_numbers:test_numbers")
tests("tests/tasks/run",t,"test_collector test_live:test_tables test_rendering render_child test_retrying:test_retry test_spreading:test_ranges")
tests("tests/tasks/audit",t,"test_likelihood"); tests("tests/tasks/job",t,"test_spec")
LINES={
"tasks/job":"The job: what is asked, as a job file or the run form says it.",
"tasks/rows":"Rows as rooms hand them over: records, verdict codes, row ids, repeated keys.",
"tasks/store":"Objects by key: the contract, a folder, S3, its failures, the probe, the disk.",
"tasks/ledger":"What is planned and what is done: batches, plan, receipts, claims, journals.",
"tasks/prompts":"Prompt files: records, formats, mixing, duplicates, the plan's batches.",
"tasks/tokenizer":"One tokenizer, proved; messages to prompt ids.",
"tasks/grammar":"Chat formats as data; ids to verdicts; other people's data.",
"tasks/turns":"The rows that a record gives, what follows a row, how it is drawn.",
"tasks/sglang":"One SGLang server: wire, what it says of itself, probe, gates.",
"tasks/sglang/restart":"The restart of a server: its process found, stopped and started without a parser.",
"tasks/fleet":"Many servers: windows, the watch, dispatch, attempts, quarantine.",
"tasks/dataset":"Committed files: shards, their readers, damage, the stored job.",
"tasks/audit":"The audit: all of a dataset read again, a sample of it scored again.",
"tasks/export":"Files for trainers: options, masks, order, formats, manifest, conversations.",
"tasks/report":"What a person reads of a dataset: summary, index, card, page.",
"tasks/run":"One run: resolve, render, generate, commit, retry, ranges, progress, maintenance.",
"deployments/cli":"The `rawseq` command: its verbs, and what they have in common.",
"deployments/cli/verbs":None,"deployments/local":"What runs on this machine alone: the stack, the demo, SeaweedFS, their folders."}
import ast,os,re,subprocess,sys
from pathlib import Path
def git(*a): return subprocess.run(["git",*a],check=True,capture_output=True,text=True).stdout
tracked=set(git("ls-files").split())
missing=[o for o in T if o not in tracked]; assert not missing,missing
assert len(set(T.values()))==len(T)
def mod(p):
    m=p[:-3].replace("/","."); return m[:-9] if m.endswith(".__init__") else m
M={mod(o):mod(n) for o,n in T.items() if o.endswith(".py") and not o.endswith("__init__.py")}
# 1 imports of modules from packages, by ast, on old sources
def py(): return [p for p in git("ls-files","*.py").split()]
allmods={mod(p) for p in py()}
for p in py():
    src=Path(p).read_text(); lines=src.splitlines(keepends=True); edits=[]
    for n in ast.walk(ast.parse(src)):
        if isinstance(n,ast.ImportFrom):
            plain,moved=[],[]
            for a in n.names:
                full=f"{n.module}.{a.name}"
                if full in M and full in allmods:
                    np,_,nn=M[full].rpartition(".")
                    moved.append((np,nn,a.asname or a.name))
                else: plain.append(a.name+(f" as {a.asname}" if a.asname else ""))
            if moved:
                ind=" "*n.col_offset; tail=lines[n.end_lineno-1]
                c="  #"+tail.split("#",1)[1].rstrip("\n") if "#" in tail else ""
                out=f"{ind}from {n.module} import {', '.join(plain)}{c}\n" if plain else ""
                for np,nn,asn in moved: out+=f"{ind}from @@{np} import {nn}"+(f" as {asn}" if asn!=nn else "")+c+"\n"
                edits.append((n.lineno-1,n.end_lineno,out))
    if edits:
        for a,b,o in sorted(edits,reverse=True): lines[a:b]=[o]
        Path(p).write_text("".join(lines))
# 2 text
dotted=re.compile(r"(?<![\w./-])(?<!@@)((?:tasks|deployments|tests|flows)(?:\.\w+)+)")
def dot(m):
    parts=m[1].split(".")
    for k in range(len(parts),1,-1):
        if ".".join(parts[:k]) in M: return ".".join([M[".".join(parts[:k])],*parts[k:]])
    return m[1]
slash=re.compile(r"(?<![\w-])((?:tasks|deployments|tests)(?:/[\w.*-]+)+)")
def sl(m):
    q=m[1]; end=""
    while q and q[-1] in ".": end=q[-1]+end; q=q[:-1]
    if q in T: return T[q]+end
    if q+".py" in T: return T[q+".py"][:-3]+end
    return m[1]
for p in sorted(tracked):
    if p.startswith(("tests/data","tests/bench/results","tests/bench/by_hand")) or p.endswith((".lock.txt",".safetensors","tokenizer.json",".npy",".pt")): continue
    try: s=Path(p).read_text()
    except (UnicodeDecodeError,IsADirectoryError): continue
    n=slash.sub(sl,s)
    n=dotted.sub(dot,n).replace("@@","") if p.endswith((".py",".md",".toml",".yaml","Makefile","run")) else n
    if n!=s: Path(p).write_text(n)
# 3 moves
for o,n in T.items():
    Path(n).parent.mkdir(parents=True,exist_ok=True); git("mv",o,n)
for f in git("ls-files","tasks/*__init__.py","deployments/*__init__.py").split():
    d=os.path.dirname(f)
    if not [x for x in git("ls-files",d).split() if x!=f] : git("rm","-qf",f)
for d,line in LINES.items():
    if line:
        Path(d,"__init__.py").write_text(f'"""{line}"""\n')
git("add","-A")
from pathlib import Path
def sub(p,*pairs,n=1):
    f=Path(p); t=f.read_text()
    for a,b in pairs:
        assert t.count(a)==n,(p,a,t.count(a)); t=t.replace(a,b)
    f.write_text(t)
sub("tasks/report/templates.py",('PackageLoader("tasks.reporting", "")','PackageLoader("tasks.report", "")'))
sub("deployments/local/presets.py",('parent / "standin" / "model"','parents[1] / "standin" / "model"'),('parent / "demo" / "prompts.jsonl"','with_name("prompts.jsonl")'))
sub("README.md",('''- [`tasks/tokens/`](tasks/tokens): messages → prompt ids, ids → verdict
- [`tasks/serving/`](tasks/serving): servers, the window of rows in flight
- [`tasks/storage/`](tasks/storage): prompts, journal, shards, the ledger ([schema](tasks/dataset/README.md))
''','''- `tasks/job`, `tasks/rows`: what is asked, and what rooms hand over; `tasks/prompts`, `tasks/tokenizer`, `tasks/turns`:
  files → records → prompt ids → rows
- [`tasks/fleet`](tasks/fleet), `tasks/sglang`: many servers and the window of rows in flight; one server
- [`tasks/grammar/`](tasks/grammar): ids → verdicts
- `tasks/store`, `tasks/ledger`, [`tasks/dataset/`](tasks/dataset): objects by key, what is done, committed files
  ([schema](tasks/dataset/README.md)); `tasks/audit`, `tasks/export`, `tasks/report`: what is made of them
- `tasks/run`: one run of all that
'''),("](tasks/storage/trainers)","](tasks/export)"))
sub("Makefile",("pytest tests/tasks/tokens tests/corruption","pytest tests/tasks/tokenizer tests/tasks/grammar tests/tasks/turns tests/corruption"),
 ("  tests/tasks/tokens tests/corruption","  tests/tasks/tokenizer tests/tasks/grammar tests/tasks/turns tests/corruption"))
sub("pyproject.toml",('"deployments/standin/train/**" = ["D1"]','"tests/standin_model/**" = ["D1"]'),('exclude = ["deployments/standin/train/"]\n',''))
sub("tests/support/model_folders.py",('HERE.parents[2] / "deployments"','HERE.parents[1] / "deployments"'),("HERE.parents[2].parent","HERE.parents[1].parent"))
sub("tests/tasks/export/export_child.py",("parents[4]","parents[3]"))
sub("tests/tasks/export/test_docs.py",("parents[4]","parents[3]"))
sub("tests/tasks/export/test_golden.py",("parents[3]","parents[2]"),('''`PYTHONPATH=. python tests/tasks/export/test_golden.py` writes tests/data/exports anew from the
rows of tests/support/stores.py: run `make test-trainers` then, before it is committed. Of Arrow and Parquet schema
and the sha256''','''`PYTHONPATH=. python tests/tasks/export/test_golden.py` writes tests/data/exports anew from the rows
of tests/support/stores.py: run `make test-trainers` then, before it is committed. Of Arrow and Parquet
schema and the sha256'''))
sub("tests/tasks/run/test_rendering.py",("ROOT = Path(__file__).resolve().parents[2]","ROOT = Path(__file__).resolve().parents[3]"))
sub("tests/tasks/store/test_memory.py",("from tasks.storage import s3_store\n","from tasks.store import s3 as s3_store\n"))
sub("tests/flows/test_faults.py",("tests/tasks/serving","tests/tasks/fleet"))
sub("tests/support/ceph.py",('["tests/tasks/storage", "-k", "ceph"]','["tests/tasks", "-k", "ceph"]'))
sub("tests/flows/test_store_access.py",('''        [sys.executable, "-m", "deployments.cli.main", "status", "s3://rawseq/out", "--credentials-block", KEYS],
''','''        [
            *(sys.executable, "-m", "deployments.cli.main"),
            *("status", "s3://rawseq/out", "--credentials-block", KEYS),
        ],
'''))
sub("tests/support/servers.py",('scope="package"','scope="session"'),n=2)
Path("tests/tasks/conftest.py").write_text('''"""Fixtures of the rooms' tests: families, small whole jobs on both stores, embedded servers."""

from tests.support.families import load, model_folder, pytest_collection_modifyitems
from tests.support.servers import nursery, quiet, right, shared
from tests.support.small_jobs import certificate, kit, prompts, s3_spec, seaweed, store

__all__ = [
    "certificate",
    "kit",
    "load",
    "model_folder",
    "nursery",
    "prompts",
    "pytest_collection_modifyitems",
    "quiet",
    "right",
    "s3_spec",
    "seaweed",
    "shared",
    "store",
]
''')

sub("tests/corruption/test_false_rejects.py",('"deployments" / "demo" / "prompts.jsonl"','"deployments" / "local" / "prompts.jsonl"'))
sub("tests/tasks/export/test_docs.py",('"tasks" / "storage" / "trainers"','"tasks" / "export"'),n=3)
f=Path("tests/bench/profiles.md"); t=f.read_text()
for a,b in (("serving/exchange.py","sglang/wire.py"),("serving/idlist.py","sglang/idlist.py"),("storage/journal_writer.py","ledger/journal_writer.py"),("storage/journal.py","ledger/journal.py"),("serving/attempts.py","fleet/attempts.py"),("serving/protocol.py","sglang/protocol.py"),("storage/frames.py","ledger/frames.py")):
    assert a in t; t=t.replace(a,b)
f.write_text(t)
sub("tests/tasks/fleet/soak.md",("serving/exchange.py","sglang/wire.py"))
