"""What commands do, as data: which are risky and why, which stay within the workspace.

A program that is in none of these tables, or a subcommand that is not in its program's row, is unknown and is shown to a
person. Programs of the workspace itself (``./run.sh``, ``python app.py``, test runners, builds) are what agents are for.
"""

import re
from dataclasses import dataclass
from typing import Final

NOTHING: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class RiskRule:
    """Matches when the subcommand is one of ``verbs``, an option one of ``flags``, an operand one of ``operands``, and no
    option one of ``unless``. What is empty is not looked at. A verb may be two words (``stash drop``).
    """

    reason: str
    verbs: frozenset[str] = NOTHING
    flags: frozenset[str] = NOTHING
    unless: frozenset[str] = NOTHING
    operands: frozenset[str] = NOTHING


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _rows(reason: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), reason)


ALWAYS: Final = {
    **_rows("kills processes", "killall pkill reboot shutdown halt poweroff init"),
    **_rows(
        "changes the machine, not the workspace",
        "mount umount iptables nft sysctl crontab systemctl service useradd userdel usermod passwd chpasswd visudo insmod "
        "modprobe swapoff at batch su",
    ),
    **_rows("destroys data", "mkfs wipefs fdisk parted shred blkdiscard"),
    **_rows("uses credentials", "aws gcloud az vault op doctl heroku flyctl ssh-add ssh-agent gpg pass"),
    **_rows("connects to another machine", "ssh scp sftp ftp telnet ssh-copy-id nc ncat netcat socat mail sendmail"),
    **_rows("installs packages", "uvx easy_install"),
    **_rows("rewrites git history", "git-filter-repo bfg"),
}
"""Programs that are risky whatever their arguments."""

_INSTALLS: Final = "installs or removes packages"
_PUBLISHES: Final = "publishes"
_ELSEWHERE: Final = "changes what runs elsewhere"
_LOSES: Final = "throws away work that git has not kept"
_HISTORY: Final = "rewrites git history"
_RECURSIVE: Final = RiskRule("changes permissions recursively", flags=_set("-R --recursive"))
_WIDE: Final = "deletes widely"


def _packages(installs: str, publishes: str = "") -> tuple[RiskRule, ...]:
    return RiskRule(_INSTALLS, _set(installs)), *((RiskRule(_PUBLISHES, _set(publishes)),) if publishes else ())


RULES: Final[dict[str, tuple[RiskRule, ...]]] = {
    "git": (
        RiskRule("sends commits to another repository", _set("push send-pack send-email")),
        RiskRule(_HISTORY, _set("filter-branch filter-repo replace update-ref prune")),
        RiskRule(_HISTORY, _set("rebase"), unless=_set("--abort")),
        RiskRule(_HISTORY, _set("commit"), _set("--amend")),
        RiskRule(_HISTORY, frozenset({"reflog expire", "reflog delete"})),
        RiskRule(_HISTORY, _set("branch"), _set("-D")),
        RiskRule(_HISTORY, _set("tag"), _set("-d --delete")),
        RiskRule(_LOSES, _set("reset"), _set("--hard --merge --keep")),
        RiskRule(_LOSES, _set("gc"), _set("--prune")),
        RiskRule(_LOSES, _set("clean"), _set("-f --force"), _set("-n --dry-run")),
        RiskRule(_LOSES, frozenset({"stash drop", "stash clear"})),
        RiskRule(_LOSES, _set("checkout restore"), unless=_set("--staged"), operands=_set(". :/ *")),
        RiskRule(_LOSES, _set("checkout switch"), _set("-f --force --discard-changes")),
        RiskRule("changes the machine, not the workspace", _set("config"), _set("--global --system")),
        RiskRule("uses credentials", _set("credential")),
        RiskRule("runs a command through git", frozenset({"submodule foreach", "bisect run"})),
    ),
    **dict.fromkeys(
        ("gh", "glab", "hub"),
        (
            RiskRule("uses credentials", _set("auth")),
            RiskRule("publishes to a forge", _set("api")),
            RiskRule(
                "publishes to a forge",
                frozenset(
                    f"{noun} {verb}"
                    for noun in ("pr", "mr", "issue", "release", "repo", "gist", "run", "workflow")
                    for verb in ("create", "merge", "delete", "close", "edit", "upload", "comment", "review")
                ),
            ),
        ),
    ),
    "chmod": (_RECURSIVE,),
    "chown": (_RECURSIVE,),
    "chgrp": (_RECURSIVE,),
    "setfacl": (_RECURSIVE,),
    "chattr": (_RECURSIVE,),
    "fuser": (RiskRule("kills processes", flags=_set("-k --kill")),),
    "rsync": (
        RiskRule(_WIDE, flags=_set("--delete --delete-after --delete-before --delete-during --delete-excluded")),
    ),
    "pip": _packages("install uninstall download"),
    "uv": _packages("add remove sync", "publish"),
    "poetry": _packages("add install update remove", "publish"),
    "pdm": _packages("add install update remove", "publish"),
    "pipx": _packages("install run inject upgrade uninstall"),
    "conda": _packages("install create update remove"),
    "mamba": _packages("install create update remove"),
    "npm": _packages("install i ci add update uninstall link", "publish unpublish"),
    "pnpm": _packages("install i add update remove dlx", "publish"),
    "yarn": _packages("install add upgrade remove dlx up", "publish"),
    "bun": _packages("install i add remove x", "publish"),
    "npx": (RiskRule("downloads and runs a package", flags=_set("-y --yes")),),
    "bunx": (RiskRule("downloads and runs a package", flags=_set("-y --yes")),),
    "gem": _packages("install update uninstall", "push"),
    "bundle": _packages("install update add"),
    "cargo": _packages("install add remove", "publish yank"),
    "go": _packages("install get"),
    "composer": _packages("install require update remove"),
    **dict.fromkeys(
        ("apt", "apt-get", "aptitude"), _packages("install remove purge upgrade dist-upgrade full-upgrade autoremove")
    ),
    **dict.fromkeys(("yum", "dnf"), _packages("install remove update upgrade erase")),
    "apk": _packages("add del upgrade"),
    "pacman": (RiskRule(_INSTALLS, flags=_set("-S -R -U")),),
    "brew": _packages("install upgrade uninstall"),
    "snap": _packages("install remove"),
    "dpkg": (RiskRule(_INSTALLS, flags=_set("-i --install -r -P --purge")),),
    "rpm": (RiskRule(_INSTALLS, flags=_set("-i -U -e")),),
    "twine": (RiskRule(_PUBLISHES, _set("upload")),),
    **dict.fromkeys(
        ("docker", "podman"),
        (
            RiskRule(_PUBLISHES, _set("push")),
            RiskRule(_ELSEWHERE, _set("login")),
            RiskRule(
                _WIDE, frozenset({"system prune", "image prune", "volume prune", "container prune", "rm"}), _set("-f")
            ),
        ),
    ),
    "helm": (RiskRule(_ELSEWHERE, _set("install upgrade uninstall rollback")),),
    "kubectl": (RiskRule(_ELSEWHERE, _set("apply delete create replace patch scale drain exec")),),
    **dict.fromkeys(("terraform", "tofu"), (RiskRule(_ELSEWHERE, _set("apply destroy import")),)),
}
"""Programs that are risky with some arguments."""

OPTIONS_WITH_VALUE: Final[dict[str, frozenset[str]]] = {
    "git": _set("-C -c --git-dir --work-tree --namespace --exec-path"),
    "docker": _set("-H --host --context"),
    "kubectl": _set("-n --namespace --context"),
    "npm": _set("--prefix -w --workspace"),
    "cargo": _set("--manifest-path"),
    "go": _set("-C"),
    "terraform": NOTHING,
}
"""Options before the subcommand that take a value."""

SUBCOMMANDS: Final[dict[str, frozenset[str]]] = {
    "git": _set(
        "add am apply archive bisect blame branch bundle cat-file check-attr check-ignore checkout cherry cherry-pick clean "
        "clone commit commit-tree config count-objects describe diff diff-files diff-index diff-tree fetch format-patch fsck "
        "gc grep hash-object help init log ls-files ls-remote ls-tree merge merge-base merge-file mv name-rev notes pull "
        "range-diff read-tree rebase reflog remote reset restore rev-list rev-parse revert rm shortlog show show-branch "
        "show-ref sparse-checkout stash status submodule switch symbolic-ref tag update-index var version whatchanged worktree "
        "write-tree"
    ),
    "pip": _set("list show freeze check cache config debug help inspect index hash"),
    "uv": _set("run pip lock tree python venv version help build cache"),
    "poetry": _set("run show check lock env version build shell"),
    "pdm": _set("run list show lock info build"),
    "pipx": _set("list environment"),
    "conda": _set("list info env search activate deactivate run"),
    "mamba": _set("list info env search activate deactivate run"),
    "npm": _set(
        "test t run run-script start exec ls list outdated view info audit explain why pkg prefix root bin pack version"
    ),
    "pnpm": _set("test t run start exec ls list outdated why audit build lint"),
    "bun": _set("test run build pm"),
    "gem": _set("list env environment which contents specification search build"),
    "bundle": _set("exec list show check info outdated config"),
    "cargo": _set(
        "build check test clippy fmt run doc bench tree metadata clean version fix b c t r search nextest expand fetch"
    ),
    "go": _set("build test vet fmt run list env mod version doc tool generate work clean fix help"),
    "composer": _set("run run-script show test validate dump-autoload exec check"),
    "apt": _set("list show search policy"),
    "apt-get": _set("changelog check"),
    "yum": _set("list info search"),
    "dnf": _set("list info search"),
    "apk": _set("info list search"),
    "brew": _set("list info search"),
    "snap": _set("list info"),
    "dpkg": NOTHING,
    "rpm": NOTHING,
    "docker": _set("ps images logs inspect version info stats top port diff history build compose"),
    "podman": _set("ps images logs inspect version info stats top port diff history build compose"),
    "helm": _set("list status get show template lint version search history"),
    "kubectl": _set("get describe logs version explain api-resources api-versions cluster-info top diff config"),
    "terraform": _set("plan validate fmt show output version providers graph init"),
    "tofu": _set("plan validate fmt show output version providers graph init"),
    "gh": _set("pr issue run repo release workflow status version search browse"),
    "glab": _set("mr issue ci repo release"),
    "twine": _set("check"),
    "dotnet": _set("build test run restore clean format list publish --info --version"),
    "rustup": _set("show which toolchain component target"),
    "pre-commit": _set("run validate-config sample-config"),
}
"""Subcommands that read, or change only the workspace. A program of this table with another subcommand is unknown."""

READS: Final = _set(
    ": [ [[ ack ag alias apt-cache arch awk b2sum base32 base64 basename bat bc bg bind break bunzip2 bzcat cal cat cd cksum "
    "cloc cmp colordiff column comm compgen complete continue cut date dc declare df diff dig dir dirname dirs disown dpkg-query du "
    "egrep enable env eval eza exa exit expand export expr factor false fc fd fdfind fg fgrep file find fmt fold free gawk "
    "getconf getent getopt getopts git-lfs grep groups hash head help hexdump history host hostname iconv id info ip jobs join "
    "jq kill last ldd less let local locale locate ls lsb_release lsblk lscpu lsof man mapfile mawk md5sum more namei netstat "
    "nice nl nm nproc nslookup numfmt objdump od paste pathchk pgrep ping popd pr printenv printf ps pstree pushd pwd read "
    "readarray readelf readlink readonly realpath return rev rg sdiff sed seq set sha1sum sha224sum sha256sum sha384sum sha512sum "
    "shasum shift shopt shuf size sleep sort source . ss stat strings stty sum tac tail tasklist test time times timeout tldr "
    "tokei top tput tr trap tree true tsort tty type typeset ulimit umask unalias uname unexpand uniq unset uptime users vmstat w "
    "wait watch wc whereis which who whoami whois xargs command exec builtin nohup xmllint xxd xz xzcat yes yq zcat zgrep zless zipinfo "
    "echo curl wget http https xh fetch aria2c fuser bash sh dash zsh ksh ash rbash"
)
"""Programs that only read, the shell's own commands, and those that the checks of :mod:`.risks` look through."""

WRITES: Final = _set(
    "7z ar bunzip2 bzip2 chgrp chmod chown cp csplit dd dos2unix duckdb gunzip gzip install ln mariadb mkdir mkfifo mktemp mv mysql "
    "patch psql rename rm rmdir rsync split sqlite3 tar tee touch truncate unix2dos unlink unxz unzip xz zip zstd setfacl chattr "
    "createdb redis-cli mongosh"
)
"""Programs that change files or data; where is looked at by :mod:`.risky_paths`."""

WORKSPACE_TOOLS: Final = _set(
    "alembic ansible-lint ant antlr4 as astro autoconf autoflake automake autopep8 autoreconf ava babel bandit bats bazel bison black "
    "blackd bracket build buildifier c++ cabal cc celery clang clang++ clang-format clang-tidy clj cmake codespell configure "
    "coverage cpack cpp cppcheck crystal csc ctags ctest cypress cython daphne dart deno django-admin docformatter doxygen "
    "dprint dub eslint esbuild elixir erl erlc fastapi flake8 flask flex flow flutter fourmolu g++ gcc gcov gdb gem gfortran ghc ghci "
    "gmake gofmt goimports golangci-lint gotestsum gradle grunt guard gulp gunicorn hadolint hatch hlint htmlhint hugo hypercorn "
    "ipython iex isort jasmine java javac jar javap jekyll jest jshint julia just karma kotlin kotlinc ktlint lake lcov ld lean lein "
    "licensecheck lint-imports lldb llc lua luac luajit luacheck m4 make markdownlint maturin mdl meson mix mkdocs mocha mvn mypy nasm next "
    "ng ninja node nodejs nodemon nox nim nunit nyc ocaml opam-exec openapi-generator oxlint parcel perl perlcritic php phpcs phpstan phpunit "
    "playwright pnpm-exec prettier prisma protoc prove psalm pycodestyle pydocstyle pyflakes pylint pypy pypy3 pyright pytest py.test "
    "python qmake quarto R Rscript racket rails rake ranlib raku rbenv-exec rollup rspec rubocop ruby ruff runghc rust-analyzer rustc "
    "rustfmt sass sbt scala scalac scalafmt semgrep sh2 shellcheck shfmt sphinx-build sqlfluff stack standard storybook strip stylelint "
    "svelte-kit swift swiftc swiftlint sqlfmt tailwindcss tox trial ts-node tsc tsup tsx turbo typos unittest uvicorn valgrind vale vite "
    "vitest vue-tsc vulture waitress-serve webpack webpack-cli wasm-pack xcodebuild yamllint yapf zig journeyman pipdeptree pip-audit "
    "interrogate radon pyproject-build mdbook nim npx bunx yarn cargo-clippy cargo-fmt"
)
"""Compilers, interpreters, test runners, linters, build tools: they run what is in the workspace."""

INTERPRETERS: Final = re.compile(r"(python|pypy|perl|ruby|node|nodejs|php|lua|deno|bun|pwsh)[\d.]*")
VERSIONED: Final = re.compile(r"(python|pypy|pip|gcc|g\+\+|clang|clang\+\+|php|lua|ruby|perl|node)-?[\d.]+")
"""Programs whose name carries a version; the plain name is looked up."""

RUNS_COMMANDS: Final = re.compile(
    r"LD_(PRELOAD|AUDIT|LIBRARY_PATH)|BASH_ENV|ENV|PROMPT_COMMAND|PS4|GIT_(SSH|SSH_COMMAND|EXTERNAL_DIFF|EDITOR|SEQUENCE_EDITOR|"
    r"PAGER|ASKPASS|PROXY_COMMAND|CONFIG_\w+)|EDITOR|VISUAL|PAGER|MANPAGER|LESSOPEN|PERL5OPT|RUBYOPT|NODE_OPTIONS|BROWSER"
)
"""Variables whose value other programs run."""
HARMLESS_PAGERS: Final = frozenset({"cat", "true", ":", "", "less"})

GIT_RUNS: Final = re.compile(
    r"(alias\..*|core\.(pager|editor|sshcommand|fsmonitor|hookspath|askpass|gitproxy)|pager\..*|sequence\.editor|diff\.external|"
    r".*\.(cmd|textconv|driver|clean|smudge|process|helper|program)|include\.path|includeif\..*|gpg\..*|uploadpack\..*)(=.*)?",
    re.IGNORECASE,
)
"""Settings of git that make it run a command."""

DOWNLOADERS: Final = _set("curl wget fetch aria2c http https lynx nc ncat socat")
DECODERS: Final = _set("base64 base32 xxd openssl gunzip zcat uudecode rev tr")
SENDING: Final = (
    "-d",
    "--data",
    "-F",
    "--form",
    "-T",
    "--upload-file",
    "--json",
    "--post-data",
    "--post-file",
    "--body-file",
)
SENDING_METHODS: Final = frozenset({"POST", "PUT", "DELETE", "PATCH"})
SECRET_NAME: Final = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|APIKEY)(_|$)|(API|PRIVATE|ACCESS|SECRET)_?KEY"
)
