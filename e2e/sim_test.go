//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	nomadapi "github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/require"

	"remuda/internal/sim/text"
	"remuda/internal/testkit/answers"
	"remuda/internal/testkit/long"
)

// exact is what the simulated engine must answer.
func exact(model, prompt string, maxTokens int) answers.Answer {
	return answers.Chat(model, []text.Message{{Role: "user", Content: prompt}}, maxTokens)
}

// TestCluster shares one cluster; its parts run in order and leave it serving.
func TestCluster(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	args := []string{"-data-dir", dir, "-single", "-no-autoscaler"}
	if !long.Enabled() {
		settings := maps.Clone(quick)
		settings["gateway"] = "timeouts {\n  header = \"2s\"\n  body = \"4s\"\n}\n" // for slowLoris
		for daemon, text := range settings {
			path := filepath.Join(dataDir(t), daemon+".hcl")
			require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
			args = append(args, "-set", daemon+"="+path)
		}
	}
	d := startDev(t, nil, args...).await(dir)
	inTurn(t, d, func(t *testing.T) { d.t = t }, []part[*dev]{
		{"the printed curl streams the exact answer", printedCurl},
		{"seats are published and pinned", seats},
		{"the web interfaces answer", webInterfaces},
		{"the gateway appears in Consul", gatewayInConsul},
		{"an engine's own port takes gateways alone", enginePort},
		{"kill -9 of the engine", killEngine},
		{"kill -9 of the shim", killShim},
		{"kill -9 of the shim and the engine", killShimAndEngine},
		{"kill -9 of the whole task", killTask},
		{"kill -9 of the executor", killExecutor},
		{"consul is stopped for a while", func(t *testing.T, d *dev) { stopped(t, d, "consul") }},
		{"the Nomad client is stopped for a while", func(t *testing.T, d *dev) { stopped(t, d, "nomad-client") }},
		{"consul is killed and stays down", func(t *testing.T, d *dev) { down(t, d, "consul") }},
		{"Nomad client and server are killed and stay down", func(t *testing.T, d *dev) { down(t, d, "nomad-client", "nomad-server") }},
		{"gateway killed comes back", killGateway},
		{"bad clients", badClients},
		{"a client that leaves frees its slot", cancellation},
		{"an engine that sends garbage", garbage},
		{"200 streams at once", manyStreams},
		{"nomad job stop drains", jobStop},
		{"nomad job run by hand", jobRun},
	})
	if !t.Failed() {
		d.stop(syscall.SIGINT)
	}
}

// enginePort asks an engine as a client that passes the gateway by, and then through the gateway.
func enginePort(t *testing.T, d *dev) {
	e := d.engine("demo")
	key, err := d.keyOf(e)
	require.NoError(t, err)
	require.NotEmpty(t, key)
	curl := func(url, credential string) string {
		out, err := exec.Command("curl", "--silent", "--show-error", "--output", "/dev/null", "--write-out", "%{http_code}", "--max-time", "30",
			url+"/v1/chat/completions", "-H", "Content-Type: application/json", "-H", "Authorization: Bearer "+credential, "-d", string(chatBody("demo", "Hello", 2, false))).CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	for _, credential := range []string{"", "client", e.Offer} {
		require.Equal(t, "401", curl("http://"+e.HostPort(), credential), credential)
		require.Equal(t, "200", curl(d.info.Gateway, credential), credential)
	}
	require.Equal(t, "200", curl("http://"+e.HostPort(), key), "the gateways' credential")
}

// pid is the process ID of a daemon, which changes when it is started again.
func (d *dev) pid(name string) int {
	d.t.Helper()
	var pid int
	eventually(d.t, time.Minute, name+" to run", func() error {
		if pid = d.findPID(name); pid == 0 {
			return errors.New("it has no process")
		}
		return nil
	})
	return pid
}

// findPID is pid, or 0 while the daemon does not run. Each daemon is started with the config
// file that bears its name.
func (d *dev) findPID(name string) int {
	if d.cluster != nil {
		return d.cluster.PID(name)
	}
	for _, child := range childrenOf(d.t, d.cmd.Process.Pid) {
		raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", child))
		state, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child))
		if bytes.Contains(raw, []byte("/config/"+name+".")) && !bytes.Contains(state, []byte(") Z ")) {
			return child
		}
	}
	return 0
}

func printedCurl(t *testing.T, d *dev) {
	out := d.out.String()
	i, j := strings.Index(out, "  curl "), strings.Index(out, "  remuda UI")
	require.True(t, i > 0 && j > i, "no curl line in:\n%s", out)
	cmd := exec.Command("sh", "-c", strings.TrimSpace(out[i:j]))
	pipe, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	got, err := readStream(pipe, func(time.Time) {})
	require.NoError(t, err)
	require.NoError(t, cmd.Wait())
	want := exact("demo", "Hello", 64)
	require.Equal(t, want.Text, got.text)
	pieces := 0
	for _, p := range want.Pieces {
		if p != "" {
			pieces++
		}
	}
	require.Equal(t, pieces, got.chunks, "one event for each token")
	// At 50 tokens/s the answer takes over a second: tokens that came one by one are spread
	// over it.
	require.Greater(t, got.last.Sub(got.first), time.Second/2, "the first token came with the last")
}

func seats(t *testing.T, d *dev) {
	nodes, _, err := d.nomad.Nodes().List(nil)
	require.NoError(t, err)
	require.Len(t, nodes, 1)
	status := d.command("nomad", "node", "status", "-verbose", nodes[0].ID)
	for _, gpu := range d.info.GPUs["dev"] {
		for seat := range 2 {
			require.Contains(t, status, fmt.Sprintf("%s#%d", gpu, seat))
		}
	}
	require.Contains(t, status, "nvidia/gpu/")
	a := d.alloc()
	devices := a.AllocatedResources.Tasks["primary"].Devices
	require.Len(t, devices, 1)
	require.Len(t, devices[0].DeviceIDs, 1)
	want := devices[0].DeviceIDs[0]
	gpu, seat, _ := strings.Cut(want, "#")
	require.Contains(t, d.info.GPUs["dev"], gpu)
	require.Equal(t, "0", seat, "the first seat of an empty GPU")
	st, err := d.shim()
	require.NoError(t, err)
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", st.PID))
	require.NoError(t, err)
	vars := strings.Split(string(env), "\x00")
	require.Contains(t, vars, "REMUDA_SEATS="+want)
	require.Contains(t, vars, "REMUDA_GPU_UUIDS="+gpu)
	require.Contains(t, vars, "NVIDIA_VISIBLE_DEVICES="+gpu)
	stats := getBody(t, d.info.Nomad+"/v1/client/stats?node_id="+a.NodeID)
	require.Contains(t, stats, want, "the plugin's statistics reach Nomad")
}

func webInterfaces(t *testing.T, d *dev) {
	for _, url := range []string{d.info.Nomad + "/ui/", "http://" + d.info.Consul + "/ui/", d.info.Controller + "/ui"} {
		page := getBody(t, url)
		require.Contains(t, page, "<script", "%s is no web application", url)
	}
}

// watchCatalog polls the catalog as fast as it can until stop is called. It
// fails the test if the engine is listed while it cannot serve.
type catalogWatch struct {
	gone, back atomic.Int64 // nanoseconds since begin; 0: not yet
	stop       func()
}

func (d *dev) watchCatalog(t *testing.T, begin time.Time) *catalogWatch {
	w := &catalogWatch{}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			there, err := d.inCatalog()
			at := time.Since(begin)
			switch {
			case err != nil:
			case !there && w.gone.Load() == 0:
				w.gone.Store(int64(at))
			case there && w.gone.Load() != 0 && w.back.Load() == 0:
				w.back.Store(int64(at))
				engines, err := d.passing("demo")
				if err == nil && len(engines) == 1 {
					key, err := d.keyOf(engines[0])
					if err == nil {
						err = askEngine("http://"+engines[0].HostPort(), "demo", key)
					}
					if err != nil {
						t.Errorf("the engine is registered and does not serve: %v", err)
					}
				}
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
	w.stop = func() { cancel(); wg.Wait() }
	return w
}

// askEngine asks an engine directly for two tokens.
func askEngine(url, model, key string) error {
	req, err := http.NewRequest(http.MethodPost, url+"/v1/chat/completions", bytes.NewReader(chatBody(model, "Hello", 2, false)))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

// survives kills what victims names, and checks that the engine leaves Consul, that nothing
// of its old life is left, and that it serves again by itself. How long each takes is in the
// log; the benchmarks measure it.
func survives(t *testing.T, d *dev, victims func(engine, shim int) []int) {
	d.engine("demo")
	st, err := d.shim()
	require.NoError(t, err)
	shim := parent(t, st.PID)
	pids := victims(st.PID, shim)
	begin := time.Now()
	w := d.watchCatalog(t, begin)
	kill9(t, pids...)
	eventually(t, time.Minute, "the engine to be back", func() error {
		if w.back.Load() == 0 {
			return errors.New("it is not listed in Consul")
		}
		return nil
	})
	w.stop()
	gone, back := time.Duration(w.gone.Load()), time.Duration(w.back.Load())
	t.Logf("gone from the catalog after %s, back after %s", gone.Round(time.Millisecond), back.Round(time.Millisecond))
	eventually(t, time.Minute, "an answer through the gateway", func() error {
		got, err := streamChat(t.Context(), d.info.Gateway, "demo", "after the kill", 8)
		if err == nil && got.text != exact("demo", "after the kill", 8).Text {
			t.Fatalf("wrong text %q", got.text)
		}
		return err
	})
	for _, pid := range []int{st.PID, shim} {
		eventually(t, time.Minute, "the old processes to be gone", func() error {
			if _, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)); err == nil {
				return fmt.Errorf("%d lives", pid)
			}
			return nil
		})
	}
	require.Len(t, enginesRunning(d), 1, "one engine process must run, not its earlier lives")
}

// enginesRunning lists the simulated engines of the cluster.
func enginesRunning(d *dev) []string {
	var found []string
	for _, p := range processesOf(d.info.DataDir) {
		if strings.Contains(p, " sim -listen ") && !strings.Contains(p, " engine ") {
			found = append(found, p)
		}
	}
	return found
}

func killEngine(t *testing.T, d *dev) {
	survives(t, d, func(engine, _ int) []int { return []int{engine} })
}

func killShim(t *testing.T, d *dev) {
	survives(t, d, func(_, shim int) []int { return []int{shim} })
}

func killShimAndEngine(t *testing.T, d *dev) {
	survives(t, d, func(engine, shim int) []int { return []int{shim, engine} })
}

func killTask(t *testing.T, d *dev) {
	survives(t, d, func(engine, shim int) []int {
		return append(append([]int{}, childrenOf(t, shim)...), shim)
	})
}

func killExecutor(t *testing.T, d *dev) {
	survives(t, d, func(_, shim int) []int { return []int{parent(t, shim)} })
}

func stopped(t *testing.T, d *dev, name string) {
	d.engine("demo")
	pid := d.pid(name)
	l := d.load("demo", 8, 40)
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	l.during(outage())
	require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
	l.during(outage() / 3) // what comes back must not disturb either
	l.none()
	d.engine("demo")
}

func down(t *testing.T, d *dev, names ...string) {
	d.engine("demo")
	var pids []int
	for _, name := range names {
		pids = append(pids, d.pid(name))
	}
	l := d.load("demo", 8, 40)
	// remuda dev would start them again at once, so it sleeps meanwhile.
	d.signal(syscall.SIGSTOP)
	kill9(t, pids...)
	l.during(outage())
	d.signal(syscall.SIGCONT)
	for i, name := range names {
		eventually(t, time.Minute, name+" to run again", func() error {
			if now := d.findPID(name); now == 0 || now == pids[i] {
				return errors.New("no process")
			}
			return nil
		})
	}
	l.during(outage() / 3)
	l.none()
	d.engine("demo")
	eventually(t, time.Minute, "nomad to know its allocation", func() error {
		a, _, err := d.nomad.Jobs().Allocations(d.info.Job, false, nil)
		if err != nil {
			return err
		}
		running := 0
		for _, x := range a {
			if x.ClientStatus == nomadapi.AllocClientStatusRunning {
				running++
			}
		}
		if running != 1 {
			return fmt.Errorf("%d allocations run", running)
		}
		return nil
	})
	require.Len(t, enginesRunning(d), 1)
}

func gatewayInConsul(t *testing.T, d *dev) {
	eventually(t, time.Minute, "the gateway to pass its check", func() error {
		entries, _, err := d.consul.Health().Service("remuda-gateway", "", true, nil)
		if err != nil {
			return err
		}
		if len(entries) != 1 {
			return fmt.Errorf("%d gateways pass", len(entries))
		}
		s := entries[0].Service
		if at := fmt.Sprintf("http://%s:%d", s.Address, s.Port); at != d.info.Gateway {
			return fmt.Errorf("consul says that it is at %s, want %s", at, d.info.Gateway)
		}
		return nil
	})
}

func killGateway(t *testing.T, d *dev) {
	kill9(t, d.pid("gateway"))
	eventually(t, time.Minute, "the gateway to serve again", func() error {
		_, err := streamChat(t.Context(), d.info.Gateway, "demo", "hello again", 4)
		return err
	})
	require.Contains(t, d.out.String(), "gateway ended (signal: killed): starting it again")
	gatewayInConsul(t, d)
}

// leaks remembers the gateway's goroutines and descriptors.
type leaks struct{ goroutines, fds int }

var goroutinesPattern = regexp.MustCompile(`(?m)^go_goroutines (\d+)$`)

func (d *dev) leaks(t *testing.T) leaks {
	t.Helper()
	client.CloseIdleConnections()
	m := goroutinesPattern.FindStringSubmatch(getBody(t, d.info.GatewayOperators[0]+"/metrics"))
	require.NotNil(t, m)
	n, err := strconv.Atoi(m[1])
	require.NoError(t, err)
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.pid("gateway")))
	require.NoError(t, err)
	return leaks{n, len(fds)}
}

// requireNoLeak waits until the gateway is back at what it had.
func (d *dev) requireNoLeak(t *testing.T, before leaks) {
	t.Helper()
	eventually(t, time.Minute, "the gateway's goroutines and descriptors to be given back", func() error {
		now := d.leaks(t)
		// The scrape, probes and idle connections come and go; a leak grows with the requests.
		if now.goroutines > before.goroutines+12 || now.fds > before.fds+8 {
			return fmt.Errorf("%+v before, %+v now", before, now)
		}
		return nil
	})
}

func badClients(t *testing.T, d *dev) {
	d.engine("demo")
	before := d.leaks(t)
	for _, tc := range []struct {
		name, method, path, contentType string
		body                            []byte
		status                          int
		message                         string
	}{
		{"1 MiB prompt beyond the context", "POST", "/v1/chat/completions", "application/json",
			chatBody("demo", strings.Repeat("a b ", 1<<18), 8, false), 400, "maximum context length"},
		{"not JSON", "POST", "/v1/chat/completions", "application/json", []byte("model=demo"), 400, "JSON"},
		{"cut JSON", "POST", "/v1/chat/completions", "application/json", []byte(`{"model":"demo","messages":[`), 400, ""},
		{"no model", "POST", "/v1/chat/completions", "application/json", []byte(`{"messages":[]}`), 400, "model"},
		{"unknown model", "POST", "/v1/completions", "application/json", []byte(`{"model":"nope","prompt":"x"}`), 404, "nope"},
		{"wrong method", "GET", "/v1/chat/completions", "", nil, 405, ""},
		{"unknown route", "POST", "/v1/nothing", "application/json", []byte(`{"model":"demo"}`), 404, ""},
		{"engine's own refusal", "POST", "/v1/chat/completions", "application/json",
			[]byte(`{"model":"demo","messages":[{"role":"user","content":"x"}],"max_tokens":-1}`), 400, "max_tokens"},
		{"too large", "POST", "/v1/completions", "application/json", bytes.Repeat([]byte(" "), 33<<20), 413, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), tc.method, d.info.Gateway+tc.path, bytes.NewReader(tc.body))
			require.NoError(t, err)
			if tc.contentType != "" {
				req.Header.Set("Content-Type", tc.contentType)
			}
			resp, err := client.Do(req)
			require.NoError(t, err)
			defer resp.Body.Close()
			var body struct {
				Error *struct {
					Message string `json:"message"`
					Type    string `json:"type"`
				} `json:"error"`
			}
			require.NoError(t, json.NewDecoder(resp.Body).Decode(&body), "the error is not JSON")
			require.Equal(t, tc.status, resp.StatusCode, "%+v", body.Error)
			require.NotNil(t, body.Error, "the error is not OpenAI-shaped")
			require.NotEmpty(t, body.Error.Type)
			require.Contains(t, body.Error.Message, tc.message)
		})
	}
	t.Run("slow loris", func(t *testing.T) { slowLoris(t, d) })
	// None of it has hurt anybody.
	got, err := streamChat(t.Context(), d.info.Gateway, "demo", "still there?", 8)
	require.NoError(t, err)
	require.Equal(t, exact("demo", "still there?", 8).Text, got.text)
	d.requireNoLeak(t, before)
}

// slowLoris sends headers, and a body, that never end. Both connections must be closed by
// the gateway.
func slowLoris(t *testing.T, d *dev) {
	addr := strings.TrimPrefix(d.info.Gateway, "http://")
	var wg sync.WaitGroup
	for name, opening := range map[string]string{
		"headers": "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Slow: ",
		"body":    "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{",
	} {
		conn, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.Write([]byte(opening))
		require.NoError(t, err)
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			_, _ = io.Copy(io.Discard, conn)
		}()
		wg.Go(func() {
			drip := time.NewTicker(200 * time.Millisecond)
			defer drip.Stop()
			limit := time.After(3 * time.Minute)
			for {
				select {
				case <-closed:
					return
				case <-drip.C:
					_, _ = conn.Write([]byte("a"))
				case <-limit:
					t.Errorf("%s: the gateway still holds the connection after 3 min", name)
					return
				}
			}
		})
	}
	wg.Wait()
}

// engineMetric reads one of the engine's own figures.
func (d *dev) engineMetric(t *testing.T, name string) float64 {
	t.Helper()
	e := d.engine("demo")
	for _, line := range strings.Split(getBody(t, "http://"+e.HostPort()+"/metrics"), "\n") {
		if strings.HasPrefix(line, name+"{") {
			v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
			require.NoError(t, err)
			return v
		}
	}
	t.Fatalf("the engine has no metric %s", name)
	return 0
}

func cancellation(t *testing.T, d *dev) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := streamChat(ctx, d.info.Gateway, "demo", "a long story", 4000)
		done <- err
	}()
	eventually(t, time.Minute, "the request to run", func() error {
		if n := d.engineMetric(t, "vllm:num_requests_running"); n != 1 {
			return fmt.Errorf("%v run", n)
		}
		return nil
	})
	cancel()
	require.Error(t, <-done)
	eventually(t, time.Minute, "the slot to be free", func() error {
		if n := d.engineMetric(t, "vllm:num_requests_running"); n != 0 {
			return fmt.Errorf("%v run", n)
		}
		return nil
	})
}

// fault switches faults of the engine on, or all off with nil.
func (d *dev) fault(t *testing.T, faults map[string]any) {
	t.Helper()
	url := "http://" + d.engine("demo").HostPort() + "/sim/faults"
	method, body := http.MethodDelete, []byte(nil)
	if faults != nil {
		method = http.MethodPost
		body, _ = json.Marshal(faults)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Less(t, resp.StatusCode, 300, resp.Status)
}

func garbage(t *testing.T, d *dev) {
	before := d.leaks(t)
	for _, tc := range []struct {
		name   string
		faults map[string]any
		check  func(t *testing.T, err error)
	}{
		// The only engine is tried again until the client has been told in its stream that
		// it waits, so the error is an event of the stream.
		{"no HTTP at all", map[string]any{"garbage": "http"}, func(t *testing.T, err error) {
			require.ErrorIs(t, err, errBrokenStream)
			require.ErrorContains(t, err, "engine_protocol_error")
		}},
		{"connection dropped in mid-stream", map[string]any{"drop_after_tokens": 3}, func(t *testing.T, err error) {
			require.ErrorIs(t, err, errBrokenStream)
			require.Contains(t, err.Error(), "message", "the client must be told, not just left")
		}},
		{"error 500", map[string]any{"error500": true}, func(t *testing.T, err error) {
			require.ErrorContains(t, err, "500")
			require.ErrorContains(t, err, "the fault switch says so")
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d.fault(t, tc.faults)
			_, err := streamChat(t.Context(), d.info.Gateway, "demo", "Hello", 16)
			d.fault(t, nil)
			tc.check(t, err)
		})
	}
	eventually(t, time.Minute, "a right answer once the engine is sane", func() error {
		_, err := streamChat(t.Context(), d.info.Gateway, "demo", "Hello", 4)
		return err
	})
	d.requireNoLeak(t, before)
}

func manyStreams(t *testing.T, d *dev) {
	before := d.leaks(t)
	l := d.load("demo", 200, 40)
	l.flows(int64(long.Pick(250, 3000)))
	l.none()
	d.requireNoLeak(t, before)
}

func jobStop(t *testing.T, d *dev) {
	type result struct {
		got answer
		err error
	}
	done := make(chan result, 1)
	go func() {
		got, err := streamChat(context.Background(), d.info.Gateway, "demo", "finish me", 150)
		done <- result{got, err}
	}()
	eventually(t, time.Minute, "the request to run", func() error {
		if n := d.engineMetric(t, "vllm:num_requests_running"); n != 1 {
			return fmt.Errorf("%v run", n)
		}
		return nil
	})
	d.pause()
	d.command("nomad", "job", "stop", "-detach", "-purge", d.info.Job)
	eventually(t, time.Minute, "the engine to leave Consul", func() error {
		if there, err := d.inCatalog(); err != nil || there {
			return fmt.Errorf("listed: %v, %v", there, err)
		}
		return nil
	})
	r := <-done
	require.NoError(t, r.err, "a running stream must finish")
	require.Equal(t, exact("demo", "finish me", 150).Text, r.got.text)

	// Nobody serves the model now: 503 for one that was known, as soon as the client
	// waits no more.
	var status statusError
	require.ErrorAs(t, refused(t.Context(), d.info.Gateway, "demo", time.Second), &status)
	require.Equal(t, 503, status.code)
	require.Contains(t, status.body, "model_unavailable")
	eventually(t, 30*time.Second, "the processes to be gone", func() error {
		if left := enginesRunning(d); len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
}

func jobRun(t *testing.T, d *dev) {
	seat := d.info.GPUs["dev"][1] + "#1"
	d.command("nomad", "job", "run", "-var", "model=by-hand",
		"-var", "seat="+seat, filepath.Join("..", "jobs", "demo.nomad.hcl"))
	engine := d.engine("by-hand")
	got, err := streamChat(t.Context(), "http://"+engine.HostPort(), "by-hand", "Hello", 8)
	require.NoError(t, err)
	require.Equal(t, exact("by-hand", "Hello", 8).Text, got.text)
	eventually(t, time.Minute, "the gateway to refuse an engine that the controller has not placed", func() error {
		_, err := streamChat(t.Context(), d.info.Gateway, "by-hand", "Hello", 8)
		if err == nil || !strings.Contains(err.Error(), "model_not_found") {
			return fmt.Errorf("want model_not_found, have %w", err)
		}
		return nil
	})
	require.Equal(t, []string{seat}, d.allocOf("demo").AllocatedResources.Tasks["primary"].Devices[0].DeviceIDs)
}
