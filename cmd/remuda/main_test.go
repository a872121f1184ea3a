package main

import (
	"bytes"
	"context"
	"flag"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/agent"
	"remuda/controller/gateway"
	"remuda/internal/sim/gguf"
	"remuda/internal/testkit/consultest"
	"remuda/internal/version"
)

// result is what a command left behind.
type result struct {
	code        int
	out, errout string
}

// remuda runs the program as the shell would.
func remuda(t *testing.T, args ...string) result {
	t.Helper()
	var out, errout bytes.Buffer
	p := &program{ctx: t.Context(), stdin: strings.NewReader(""), stdout: &out, stderr: &errout}
	return result{p.run(args), out.String(), errout.String()}
}

func TestVersion(t *testing.T) {
	r := remuda(t, "version")
	require.Equal(t, result{code: 0, out: version.Long() + "\n"}, r)
	r = remuda(t, "-version")
	require.Equal(t, 0, r.code)
	require.Contains(t, r.out+r.errout, version.String())
}

// TestVersionNamesTheCommit: a release has its commit and date from the linker.
func TestVersionNamesTheCommit(t *testing.T) {
	defer func(commit, date string) { version.Commit, version.Date = commit, date }(version.Commit, version.Date)
	version.Commit, version.Date = "4d94158", "2026-01-02T03:04:05Z"
	require.Contains(t, remuda(t, "version").out, "(commit 4d94158, 2026-01-02T03:04:05Z, go1.")
}

// TestSampleConfiguration: the daemons take the files that the package installs.
func TestSampleConfiguration(t *testing.T) {
	controller, err := agent.LoadFile("../../packaging/etc/controller.hcl", agent.DefaultConfig())
	require.NoError(t, err)
	require.Equal(t, "/var/lib/remuda/controller", controller.DataDir)
	require.True(t, controller.ACL.Enabled)
	clients, err := gateway.LoadFile("../../packaging/etc/gateway.hcl", gateway.DefaultConfig())
	require.NoError(t, err)
	require.Equal(t, []string{"http://127.0.0.1:4750"}, clients.Controller.Addresses)
}

// TestCompletion: shells call the program with the command line in COMP_LINE.
func TestCompletion(t *testing.T) {
	for line, want := range map[string][]string{
		"remuda mod":                    {"model"},
		"remuda model sta":              {"start", "status"},
		"remuda model apply -dry":       {"-dry-run"},
		"remuda gateway -operator-list": {"-operator-listen"},
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), "COMP_LINE="+line, asProgram+"=1")
		out, err := cmd.Output()
		require.NoError(t, err)
		got := strings.Fields(string(out))
		slices.Sort(got)
		require.Equal(t, want, got, line)
	}
}

func TestHelpListsEveryVerb(t *testing.T) {
	r := remuda(t, "-h")
	require.Equal(t, 0, r.code)
	p := &program{}
	for name := range p.verbs() {
		first, rest, _ := strings.Cut(name, " ")
		if rest == "" && first != gmsServeVerbName && first != simWorkerVerbName {
			require.Contains(t, r.out, "\n    "+first, "remuda -h")
		}
	}
	require.NotContains(t, r.out, gmsServeVerbName)
}

// TestEveryVerbExplainsItself: -h shows the usage and every flag with its
// meaning, on standard output.
func TestEveryVerbExplainsItself(t *testing.T) {
	p := &program{stdout: io.Discard, stderr: io.Discard}
	for name, v := range p.verbs() {
		t.Run(name, func(t *testing.T) {
			require.NotEmpty(t, v.synopsis)
			require.NotEmpty(t, v.about)
			r := remuda(t, append(strings.Fields(name), "-h")...)
			require.Equal(t, 0, r.code, r.errout)
			require.Contains(t, r.out, "Usage: remuda "+name)
			fs := flag.NewFlagSet(name, flag.ContinueOnError)
			v.setup(fs)
			fs.VisitAll(func(f *flag.Flag) {
				require.NotEmpty(t, f.Usage, "-%s", f.Name)
				require.Regexp(t, regexp.MustCompile(`(?m)^  -`+f.Name+`\b`), r.out)
			})
		})
	}
}

func TestMistakesAreExplained(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.hcl")
	require.NoError(t, os.WriteFile(bad, []byte("listn = 1\ntimeouts {\n  body = \"soon\"\n}\n"), 0o600))
	broken := filepath.Join(dir, "broken.gguf")
	require.NoError(t, os.WriteFile(broken, []byte("no model"), 0o600))
	const group = "m:v:r"
	for name, tc := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"no such verb":              {[]string{"serve"}, 2, nil},
		"no such flag":              {[]string{"version", "-x"}, 2, []string{"flag provided but not defined: -x", "Run 'remuda version -h'"}},
		"nearly a flag":             {[]string{"dev", "-data", "X"}, 2, []string{"flag provided but not defined: -data (did you mean -data-dir?)"}},
		"a misspelt flag":           {[]string{"model", "list", "-wach"}, 2, []string{"flag provided but not defined: -wach (did you mean -watch?)"}},
		"too much":                  {[]string{"version", "now"}, 2, []string{`unexpected argument "now"`}},
		"an engine without group":   {[]string{"engine", "--", "true"}, 2, []string{"-group must be set: <model>:<variant>:<replica id>"}},
		"an engine with half a one": {[]string{"engine", "-group", "m", "--", "true"}, 2, []string{"-group:"}},
		"an engine without command": {[]string{"engine", "-group", group, "-engine-url", "http://127.0.0.1:1"}, 2, []string{"must be the engine's command, after --"}},
		"every bad field at once": {
			[]string{"engine", "-group", group, "-role", "king", "-ttl", "1ms", "-slots", "-1", "--", "true"}, 2,
			[]string{`role is "king"`, "ttl is 1ms", "slots is -1", `engine-url is ""`},
		},
		"a level that is none":   {[]string{"engine", "-group", group, "-log-level", "loud", "--", "true"}, 2, []string{`-log-level is "loud": must be trace, debug, info, warn or error`}},
		"a gateway of two minds": {[]string{"gateway", "-dev", "-config", "x"}, 2, []string{"set either -config FILE or -dev"}},
		"a gateway without":      {[]string{"gateway"}, 2, []string{"set either -config FILE or -dev"}},
		"a file that is not there": {
			[]string{"gateway", "-config", filepath.Join(dir, "none.hcl")}, 1, []string{"read gateway config", "none.hcl"}},
		"a bad file": {
			[]string{"gateway", "-config", bad}, 1, []string{bad + ":1:1: unsupported argument", bad + `:3:10: timeouts.body is "soon"`}},
		"a bad address":             {[]string{"gateway", "-dev", "-consul", "http://"}, 2, []string{`consul address "http://"`}},
		"a lockd without anything":  {[]string{"lockd"}, 2, []string{"socket is empty", "state is empty"}},
		"a lockd open to all":       {[]string{"lockd", "-socket", "s", "-state", "t", "-listen", "0.0.0.0:1"}, 2, []string{"must be a loopback address unless TLS is set"}},
		"half a TLS":                {[]string{"lockd", "-socket", "s", "-state", "t", "-tls-cert", "c"}, 2, []string{"-tls-cert, -tls-key and -tls-ca must be set together"}},
		"a delay that is too short": {[]string{"lockd", "-socket", "s", "-state", "t", "-lock-delay", "1ms"}, 2, []string{"lock-delay is 1ms: must be at least"}},
		"the status of nothing":     {[]string{"lockd", "status"}, 2, []string{"-lock is required"}},
		"the status of nobody":      {[]string{"lockd", "status", "-lock", filepath.Join(dir, "sock")}, 1, []string{filepath.Join(dir, "sock")}},
		"a lock that is no address": {[]string{"engine", "-group", group, "-engine-url", "http://127.0.0.1:1", "-lock", "lockd", "--", "true"}, 2, []string{"lock:", `"lockd"`}},
		"a simulator of nothing":    {[]string{"sim"}, 2, []string{"model"}},
		"a fault that is none":      {[]string{"sim", "-model", "m", "-fault", "tired=1"}, 2, []string{"tired"}},
		"weights without size":      {[]string{"sim", "weights", filepath.Join(dir, "w")}, 2, []string{"-size"}},
		"weights without file":      {[]string{"sim", "weights", "-size", "1MiB"}, 2, []string{"expected one FILE, got 0 arguments"}},
		"gpus by the dozen":         {[]string{"dev", "-gpus", "99"}, 2, []string{"-gpus is 99: must be 1 to 16"}},
		"an agent of two minds":     {[]string{"agent", "-dev", "-config", "x"}, 2, []string{"set either -config FILE or -dev"}},
		"an agent without":          {[]string{"agent"}, 2, []string{"set either -config FILE or -dev"}},
		"a bad file of an agent":    {[]string{"agent", "-config", bad}, 1, []string{bad + ":1:1: unsupported argument", bad + ":1:1: data_dir is required", bad + ":2:1: unsupported block type"}},
		"an agent at no address":    {[]string{"agent", "-dev", "-http", "here", "-raft", "there"}, 2, []string{`http.bind is "here"`, `raft.bind is "there"`}},
		"a controller nowhere":      {[]string{"model", "list", "-address", "http://127.0.0.1:1"}, 1, []string{"127.0.0.1:1", `is "remuda agent" running there? Set -address or REMUDA_ADDR to its address`}},
		"a controller of no kind":   {[]string{"model", "list", "-address", "ftp://x"}, 2, []string{`address is "ftp://x"`}},
		"half a certificate":        {[]string{"model", "list", "-client-cert", bad}, 2, []string{"client certificate and key"}},
		"scaled by nobody":          {[]string{"scale", "m"}, 2, []string{"expected MODEL[/VARIANT] REPLICAS, got 1 argument"}},
		"scaled by words":           {[]string{"scale", "m", "many"}, 2, []string{`REPLICAS is "many": must be a whole number of 0 or more`}},
		"scaled below nothing":      {[]string{"scale", "m", "-1"}, 2, []string{`REPLICAS is "-1": must be a whole number of 0 or more`}},
		"expected in no pool":       {[]string{"scale", "m", "1", "-pool", ""}, 2, []string{`-pool is "": must be the name of an external capacity pool`}},
		"expected at home":          {[]string{"scale", "m", "1", "-pool", "own"}, 2, []string{`-pool is "own": must be the name of an external capacity pool`}},
		"seats by the dozen":        {[]string{"dev", "-seats", "99"}, 2, []string{"-seats is 99: must be 1 to 64"}},
		"a model of no name":        {[]string{"model", "status", ""}, 2, []string{"MODEL is empty"}},
		"two listings at once":      {[]string{"model", "list", "a"}, 2, []string{`unexpected argument "a"`}},
		"evicted upwards":           {[]string{"evict", "m", "-to", "hot"}, 2, []string{`-to is "hot": must be warm or cold`}},
		"handed over at once":       {[]string{"failover", "m", "-timeout", "0s"}, 2, []string{"-timeout is 0s: must be more than 0s"}},
		"deleted in the background": {[]string{"model", "delete", "m", "-detach"}, 2, []string{"flag provided but not defined: -detach"}},
		"a token without a role":    {[]string{"acl", "token", "create"}, 2, []string{"-role is required: one of operator, gateway, autoscaler, read-only"}},
		"a token for a king":        {[]string{"acl", "token", "create", "-role", "king"}, 2, []string{`-role is "king": must be one of operator, gateway, autoscaler, read-only`}},
		"no decisions":              {[]string{"decision", "list", "-limit", "0"}, 2, []string{"-limit is 0"}},
		"no model file":             {[]string{"model", "apply", filepath.Join(dir, "none.hcl")}, 1, []string{"none.hcl"}},
		"a snapshot of nothing":     {[]string{"snapshot", "inspect", broken}, 1, []string{broken, "snapshot is damaged"}},
		"a snapshot that is not":    {[]string{"snapshot", "restore", filepath.Join(dir, "none")}, 1, []string{"none"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := remuda(t, tc.args...)
			require.Equal(t, tc.code, r.code, r.errout)
			require.Empty(t, r.out)
			for _, want := range tc.want {
				require.Contains(t, r.errout, want)
			}
		})
	}
}

func TestSimFiles(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "w.safetensors")
	r := remuda(t, "sim", "weights", "-size", "1MiB", file)
	require.Equal(t, 0, r.code, r.errout)
	require.Equal(t, file+": written, 1048576 bytes of weights, seed 1\n", r.out)
	r = remuda(t, "sim", "weights", "-size", "1MiB", file)
	require.Equal(t, file+": unchanged, 1048576 bytes of weights, seed 1\n", r.out)

	file = filepath.Join(dir, "m.gguf")
	r = remuda(t, "sim", "gguf", file)
	require.Equal(t, 0, r.code, r.errout)
	require.Equal(t, file+": written, a model of the llama architecture, seed 1\n", r.out)
	require.NoError(t, gguf.Check(file))
}

// lines collects what a daemon prints, and hands out each line once.
type lines struct {
	mu   sync.Mutex
	rest []byte
	out  chan string
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, p...)
	for {
		line, rest, found := bytes.Cut(l.rest, []byte("\n"))
		if !found {
			return len(p), nil
		}
		l.out <- string(line)
		l.rest = rest
	}
}

// TestLockd runs one and asks for its locks.
func TestLockd(t *testing.T) {
	dir, err := os.MkdirTemp("", "lockd") // a short path
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	sock := filepath.Join(dir, "sock")
	ctx, stop := context.WithCancel(t.Context())
	p := &program{ctx: ctx, stdin: strings.NewReader(""), stdout: io.Discard, stderr: io.Discard}
	code := make(chan int, 1)
	go func() { code <- p.run([]string{"lockd", "-socket", sock, "-state", filepath.Join(dir, "state")}) }()
	var r result
	require.Eventually(t, func() bool { r = remuda(t, "lockd", "status", "-lock", sock); return r.code == 0 }, 10*time.Second, 5*time.Millisecond)
	require.Equal(t, "No locks.\n", r.out)
	require.Equal(t, "[]\n", remuda(t, "lockd", "status", "-lock", sock, "-json").out)
	stop()
	require.Equal(t, 0, <-code)
}

// TestGatewayRunsAndAnnouncesItself until it is told to stop.
func TestGatewayRunsAndAnnouncesItself(t *testing.T) {
	agent := consultest.New(t)
	ctx, stop := context.WithCancel(t.Context())
	out := &lines{out: make(chan string, 10)}
	p := &program{ctx: ctx, stdin: strings.NewReader(""), stdout: out, stderr: io.Discard}
	code := make(chan int, 1)
	go func() {
		code <- p.run([]string{"gateway", "-dev", "-listen", "127.0.0.1:0", "-operator-listen", "127.0.0.1:0", "-consul", agent.Addr()})
	}()
	url := strings.TrimPrefix(<-out.out, "gateway listening on ")
	operators := strings.TrimPrefix(<-out.out, "gateway's operator port at ")
	all := agent.Await(t, "the registration", func(all []consultest.Service) bool { return len(all) == 1 })
	require.Equal(t, "remuda-gateway", all[0].Name)
	require.Equal(t, url+"/ready", all[0].Check.HTTP)
	require.True(t, strings.HasSuffix(operators, ":"+all[0].Meta["operator_port"]), "%s, metadata %v", operators, all[0].Meta)
	require.Eventually(t, func() bool {
		resp, err := http.Get(url + "/ready")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}, 10*time.Second, 5*time.Millisecond)
	stop()
	require.Equal(t, 0, <-code)
	require.Empty(t, agent.Services())
}

// TestEveryWordExplainsItself: what is no verb but the beginning of some says so.
func TestEveryWordExplainsItself(t *testing.T) {
	verbs := (&program{}).verbs()
	words := map[string]bool{}
	for name := range verbs {
		for {
			i := strings.LastIndexByte(name, ' ')
			if i < 0 {
				break
			}
			name = name[:i]
			if _, verb := verbs[name]; !verb {
				words[name] = true
			}
		}
	}
	help := remuda(t, "-h").out
	for word := range words {
		require.NotEmpty(t, groups[word], "remuda %s has commands and no line in groups", word)
		if !strings.Contains(word, " ") {
			require.Regexp(t, `(?m)^    `+word+` +`+regexp.QuoteMeta(groups[word])+`$`, help)
		}
		r := remuda(t, strings.Fields(word)...)
		require.Equal(t, 2, r.code, word)
		require.Contains(t, r.errout, "Usage: remuda "+word+" COMMAND")
		require.Contains(t, r.errout, "Subcommands:")
		r = remuda(t, append(strings.Fields(word), "dance")...)
		require.Equal(t, 2, r.code, word)
		require.Contains(t, r.errout, "remuda "+word+`: no command "dance"`)
		require.Equal(t, 0, remuda(t, append(strings.Fields(word), "-h")...).code)
	}
	require.Len(t, groups, len(words))
	require.Equal(t, "remuda: no command \"dance\"\nRun 'remuda -h' for the list of commands.\n", remuda(t, "dance").errout)
	require.Contains(t, remuda(t, "modle").errout, `remuda: no command "modle": did you mean "model"?`)
	require.Contains(t, remuda(t, "model", "lsit").errout, `remuda model: no command "lsit": did you mean "model list"?`)
}
