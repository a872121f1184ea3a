package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/consul"
	"remuda/internal/replica"
	"remuda/internal/testkit/built"
	"remuda/internal/testkit/consultest"
	"remuda/internal/testkit/long"
	"remuda/internal/testkit/loopback"
	"remuda/internal/testkit/proclog"
	"remuda/jobs"
)

// gatewayJob returns what the shipped job gives to a gateway: its memory in MiB, and its environment.
func gatewayJob(t *testing.T) (memory int, env []string) {
	t.Helper()
	job, err := jobs.Files.ReadFile("gateway.nomad.hcl")
	require.NoError(t, err)
	found := regexp.MustCompile(`\n\s*memory = (\d+)`).FindSubmatch(job)
	require.NotNil(t, found)
	memory, err = strconv.Atoi(string(found[1]))
	require.NoError(t, err)
	for _, set := range regexp.MustCompile(`\n\s*(GO[A-Z]+)\s*= "(.*)"`).FindAllSubmatch(job, -1) {
		env = append(env, string(set[1])+"="+string(set[2]))
	}
	require.Len(t, env, 2)
	return memory, env
}

// peakMemory returns the most MiB that a process has had in memory.
func peakMemory(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	found := regexp.MustCompile(`VmHWM:\s*(\d+) kB`).FindSubmatch(status)
	require.NotNil(t, found)
	kib, err := strconv.Atoi(string(found[1]))
	require.NoError(t, err)
	return kib >> 10
}

// TestGatewayFitsItsJob: a gateway with the settings of the shipped job stays within that job's memory when 12
// clients, and then many more, send 31 MiB each at the same time to an engine that does not read. The clients have
// no keys, and each has its own address. A refused client may see its connection end before it reads the 503.
// The process is the real one, without the race detector.
func TestGatewayFitsItsJob(t *testing.T) {
	memory, env := gatewayJob(t)
	bin := built.Copy(t, "remuda")

	var mu sync.Mutex
	held := make(chan struct{}) // closed once the engine reads
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		reads := held
		mu.Unlock()
		<-reads
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"said":"x"}`)
	}))
	defer s.Close()
	defer s.CloseClientConnections()
	agent := consultest.New(t)
	cfg := consul.DefaultRegistrarConfig()
	cfg.Address, cfg.Cohort, cfg.TTL = consul.Address{Addr: agent.Addr()}, "c", time.Hour // no shim pushes it
	registrar, err := consul.NewRegistrar(cfg)
	require.NoError(t, err)
	defer registrar.Close()
	host, port, err := net.SplitHostPort(s.Listener.Addr().String())
	require.NoError(t, err)
	n, err := strconv.Atoi(port)
	require.NoError(t, err)
	require.NoError(t, registrar.Register(t.Context(), replica.Engine{Name: replica.Name{Model: "m", Variant: "v", ID: "a"}, Role: replica.RolePrimary, Address: host, Port: n, Slots: 256}))

	listen, config, log := loopback.Free(t), filepath.Join(t.TempDir(), "gateway.hcl"), &proclog.Buffer{}
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, "listen = %q\noperator_listen = %q\nconsul {\n  address = %q\n}\n", listen, loopback.Free(t), agent.Addr()), 0o600))
	cmd := exec.Command(bin, "gateway", "-config", config)
	cmd.Env, cmd.Stderr = append(os.Environ(), env...), log
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		require.NoError(t, <-ended, "%s", log)
	}()
	ask := func(from string, body io.Reader, length int64) (status int, err error) {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		transport := &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+listen+"/v1/completions", body)
		if err != nil {
			return 0, err
		}
		req.ContentLength = length
		resp, err := transport.RoundTrip(req)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode, nil
	}
	small := `{"model":"m","prompt":"x"}`
	close(held)
	require.Eventually(t, func() bool {
		status, err := ask("127.0.0.1", strings.NewReader(small), int64(len(small)))
		return err == nil && status == http.StatusOK
	}, time.Minute, 10*time.Millisecond, "the gateway serves")

	const start, end = `{"model":"m","prompt":"`, `"}`
	prompt := strings.Repeat("x", 31<<20)
	for _, clients := range []int{12, long.Pick(36, 100)} {
		mu.Lock()
		held = make(chan struct{})
		mu.Unlock()
		release := sync.OnceFunc(func() { close(held) })
		defer release()
		statuses := make(chan int, clients)
		for i := range clients {
			go func() {
				status, _ := ask(fmt.Sprintf("127.0.1.%d", i+1), io.MultiReader(strings.NewReader(start), strings.NewReader(prompt), strings.NewReader(end)), int64(len(start)+len(prompt)+len(end)))
				statuses <- status
			}()
		}
		got := map[int]int{}
		answered := func(n int) {
			deadline := time.After(5 * time.Minute)
			for range n {
				for waits := true; waits; {
					select {
					case status := <-statuses:
						got[status]++
						waits = false
					case <-time.After(100 * time.Millisecond):
					case <-deadline:
						require.Fail(t, "too few answers", "by status %v of %d", got, clients)
					}
					require.Less(t, peakMemory(t, cmd.Process.Pid), memory, "MiB")
				}
			}
		}
		answered(clients - 7) // 192 MiB are for 6 of them, or fewer while they grow
		release()
		answered(7)
		t.Logf("%d requests of 31 MiB: by status %v, at most %d MiB of %d", clients, got, peakMemory(t, cmd.Process.Pid), memory)
		require.Positive(t, got[http.StatusOK], "some are served")
	}
	status, err := ask("127.0.0.1", strings.NewReader(small), int64(len(small)))
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status, "it serves on")
}
