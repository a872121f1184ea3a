//go:build e2e

package e2e

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/sim/gpu"
	"remuda/internal/testkit/process"
	"remuda/internal/testkit/proclog"
)

// BenchmarkPairMemory measures the memory of a primary and its shadow, each with
// 1 GiB of weights, with copies of their own and with those of the GPU memory
// service: while one is awake and the other sleeps (level 1), and while both sleep.
// It counts the proportional set sizes of all processes, the service's and its
// keeper's too, and what the service holds and nobody has mapped.
func BenchmarkPairMemory(b *testing.B) {
	file := filepath.Join(b.TempDir(), "weights.safetensors")
	out, err := exec.Command(binary(b, "remuda"), "sim", "weights", "-size", "1GiB", file).CombinedOutput()
	require.NoError(b, err, "%s", out)
	for _, shared := range []bool{false, true} {
		name := map[bool]string{false: "private", true: "gms"}[shared]
		b.Run(name, func(b *testing.B) {
			for range b.N {
				p := newBenchPair(b, file, shared)
				p.sleep(1)
				b.ReportMetric(p.memory(), "MiB-one-awake")
				p.sleep(0)
				b.ReportMetric(p.memory(), "MiB-both-asleep")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}

// benchPair are two simulated engines, and the service where they share.
type benchPair struct {
	b       *testing.B
	pids    []int
	engines []string // their addresses
	metrics string   // of the service; empty without
}

func newBenchPair(b *testing.B, file string, shared bool) *benchPair {
	b.Helper()
	p := &benchPair{b: b}
	dir, err := os.MkdirTemp("", "pair")
	require.NoError(b, err)
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := ""
	if shared {
		p.metrics = freeAddress(b)
		p.run("gms", "-socket-dir", dir, "-backend", "host", "-gpu", gpu.UUID("", 0)+"=8GiB", "-metrics", p.metrics)
		socket = filepath.Join(dir, "gms_"+gpu.UUID("", 0)+"_weights.sock")
	}
	for _, lock := range []string{"rw_or_ro", "ro"} {
		addr := freeAddress(b)
		p.run("sim", "-listen", addr, "-model", "m", "-weights", file, "-gms-socket", socket, "-gms-lock", lock)
		p.engines = append(p.engines, addr)
	}
	for _, addr := range p.engines {
		eventually(b, time.Minute, "an engine to be ready", func() error { return post(http.MethodGet, "http://"+addr+"/health") })
	}
	if shared {
		p.pids = append(p.pids, process.Child(p.pids[0])) // the service, whose keeper is first
	}
	return p
}

// run starts a process that ends with the benchmark.
func (p *benchPair) run(args ...string) {
	p.b.Helper()
	cmd := exec.Command(binary(p.b, "remuda"), args...)
	log := &proclog.Buffer{}
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(p.b, cmd.Start())
	p.pids = append(p.pids, cmd.Process.Pid)
	p.b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if p.b.Failed() {
			p.b.Logf("%v:\n%s", args, log)
		}
	})
}

// sleep puts one engine to sleep.
func (p *benchPair) sleep(i int) {
	p.b.Helper()
	require.NoError(p.b, post(http.MethodPost, "http://"+p.engines[i]+"/sleep?level=1"))
}

func post(method, url string) error {
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: status %d", url, resp.StatusCode)
	}
	return nil
}

// memory is in MiB.
func (p *benchPair) memory() float64 {
	p.b.Helper()
	sum, mapped := int64(0), int64(0)
	for _, pid := range p.pids {
		sum += proportional(p.b, pid)
		mapped += mappedShared(p.b, pid)
	}
	if p.metrics != "" {
		sum += max(int64(gauge(p.b, "http://"+p.metrics+"/metrics", "remuda_gms_used_bytes"))-mapped, 0)
	}
	return float64(sum) / (1 << 20)
}

// mappedShared is how much of the service's memory a process has mapped and read,
// in bytes; what several share is split between them.
func mappedShared(tb testing.TB, pid int) (sum int64) {
	tb.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps", pid))
	require.NoError(tb, err)
	defer f.Close()
	ours := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) > 0 && strings.Contains(fields[0], "-"):
			ours = strings.Contains(lines.Text(), "/memfd:remuda-gms")
		case ours && len(fields) == 3 && fields[0] == "Pss:":
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			require.NoError(tb, err)
			sum += kib << 10
		}
	}
	return sum
}

// gauge adds up the samples of a metric.
func gauge(tb testing.TB, url, name string) (sum float64) {
	tb.Helper()
	resp, err := client.Get(url)
	require.NoError(tb, err)
	defer resp.Body.Close()
	found := false
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), name); ok && (rest[0] == '{' || rest[0] == ' ') {
			v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
			require.NoError(tb, err)
			sum, found = sum+v, true
		}
	}
	require.True(tb, found, "%s has no %s", url, name)
	return sum
}

func freeAddress(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	defer l.Close()
	return l.Addr().String()
}
