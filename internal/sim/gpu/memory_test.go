package gpu_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	deviceplugin "remuda/device-plugin"
	"remuda/device-plugin/gms"
	"remuda/device-plugin/gms/backend/host"
	"remuda/device-plugin/gms/client"
	"remuda/device-plugin/gms/wire"
	"remuda/internal/sim/gpu"
	"remuda/internal/sim/memory"
	"remuda/internal/sim/weights"
	"remuda/internal/testkit/gmsserve"
)

// roleEnv makes this program another one: "busy" works on nothing, "bank FILE" holds
// weights on the GPUs of its environment, "reader SOCKET" maps what the GPU memory
// service has. They answer each line of their input with one.
const roleEnv = "GPU_TEST_ROLE"

func TestMain(m *testing.M) {
	args := strings.Fields(os.Getenv(roleEnv))
	if len(args) == 0 {
		os.Exit(m.Run())
	}
	var err error
	switch args[0] {
	case "busy":
		heap := make([]byte, 64<<20)
		for i := 0; ; i += 4096 {
			heap[i%len(heap)]++
		}
	case "bank":
		err = bankMain(args[1])
	case "reader":
		err = readerMain(args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// bankMain does what it is told: sleep, leak, wake, move.
func bankMain(file string) error {
	b, err := memory.Open(file, strings.Split(os.Getenv(deviceplugin.EnvGPUs), ","))
	if err != nil {
		return err
	}
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		switch word, rest, _ := strings.Cut(in.Text(), " "); word {
		case "sleep":
			err = b.Sleep(memory.LevelOffload, 0)
		case "leak":
			err = b.Sleep(memory.LevelOffload, 2<<20)
		case "wake":
			err = b.Wake(context.Background(), false)
		case "move":
			err = b.Move(strings.Split(rest, ","))
		}
		if err != nil {
			return err
		}
		fmt.Println("done")
	}
	return nil
}

func readerMain(socket string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := client.New(client.Config{Socket: socket, Space: host.NewSpace()})
	if err != nil {
		return err
	}
	if _, err := c.Connect(ctx, wire.RO, nil); err != nil {
		return err
	}
	list, err := c.Session().List(ctx, "")
	if err != nil {
		return err
	}
	for _, a := range list {
		if _, err := c.Map(ctx, a.ID); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// process is this program in another role.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

func start(t *testing.T, role, gpus string) *process {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"="+role, deviceplugin.EnvGPUs+"="+gpus)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p := &process{t: t, cmd: cmd, in: in, out: bufio.NewReader(out)}
	t.Cleanup(p.kill)
	p.answer("ready\n")
	return p
}

func (p *process) answer(want string) {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	require.NoError(p.t, err)
	require.Equal(p.t, want, line)
}

func (p *process) tell(what string) {
	p.t.Helper()
	_, err := fmt.Fprintln(p.in, what)
	require.NoError(p.t, err)
	p.answer("done\n")
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// uses waits until the GPUs have so many MiB in use.
func uses(t *testing.T, src *gpu.Source, what string, want ...int64) {
	t.Helper()
	var got []int64
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		samples, err := src.Samples(t.Context())
		require.NoError(t, err)
		got = nil
		for i := range want {
			got = append(got, *samples[gpu.UUID(seed(t), i)].MemoryUsedMiB)
		}
		if fmt.Sprint(got) == fmt.Sprint(want) {
			return
		}
		require.True(t, time.Now().Before(deadline), "%s: GPUs use %d MiB, want %d", what, got, want)
	}
}

// seed is of GPUs that no other process of this machine has: Samples looks at all of them,
// and this test may run there twice.
func seed(t *testing.T) string { return fmt.Sprint(t.Name(), os.Getpid()) }

func simulated(t *testing.T, count int) *gpu.Source {
	t.Helper()
	src, err := gpu.New(gpu.Config{Logger: hclog.NewNullLogger(), DefaultSeats: 2, Seed: seed(t),
		Blocks: []deviceplugin.Simulate{{Model: "H100", Count: n(count)}}})
	require.NoError(t, err)
	return src
}

// TestDeviceMemoryOfAnEngine: what sleeps is free but for what leaks, whatever it has in
// host memory, and a move moves it.
func TestDeviceMemoryOfAnEngine(t *testing.T) {
	src := simulated(t, 3)
	file := filepath.Join(t.TempDir(), "w.safetensors")
	_, err := weights.Create(file, weights.Spec{Size: 48 << 20, Seed: 1})
	require.NoError(t, err)
	g := func(i int) string { return gpu.UUID(seed(t), i) }
	one := start(t, "bank "+file, g(0)+","+g(1))
	uses(t, src, "awake", 24, 24, 0)
	two := start(t, "bank "+file, g(1))
	uses(t, src, "two engines", 24, 72, 0)
	one.tell("sleep")
	uses(t, src, "asleep", 0, 48, 0)
	one.tell("move " + g(2) + "," + g(0))
	one.tell("wake")
	uses(t, src, "moved", 24, 48, 24)
	two.tell("leak")
	uses(t, src, "a leak", 24, 2, 24)
	two.kill()
	one.kill()
	uses(t, src, "dead", 0, 0, 0)
}

// TestMemoryOfTheService counts whether anybody maps it or not, and once if several do.
func TestMemoryOfTheService(t *testing.T) {
	src := simulated(t, 2)
	uuid := gpu.UUID(seed(t), 1)
	dir, err := os.MkdirTemp("", "held")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b, err := host.New(host.Config{GPU: uuid})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	cfg := gms.DefaultConfig()
	cfg.SocketDir, cfg.GPUs = dir, []gms.GPU{{UUID: uuid, Backend: b}}
	service := gmsserve.Start(t, cfg)

	socket := filepath.Join(dir, "gms_"+uuid+"_weights.sock")
	c, err := client.New(client.Config{Socket: socket, Space: host.NewSpace()})
	require.NoError(t, err)
	within, end := context.WithTimeout(t.Context(), 20*time.Second)
	defer end()
	_, err = c.Connect(within, wire.RW, nil)
	require.NoError(t, err)
	a, err := c.Session().Allocate(within, 30<<20, "weights")
	require.NoError(t, err)
	uses(t, src, "nobody maps it", 0, 30)
	_, err = c.Map(within, a.ID)
	require.NoError(t, err)
	_, err = c.Commit(within)
	require.NoError(t, err)
	one, two := start(t, "reader "+socket, uuid), start(t, "reader "+socket, uuid)
	uses(t, src, "three map it", 0, 30)
	require.NoError(t, c.Close())
	service.Stop()
	require.NoError(t, b.Close())
	uses(t, src, "the service is gone, and engines map it on", 0, 30)
	one.kill()
	uses(t, src, "one engine maps it", 0, 30)
	two.kill()
	uses(t, src, "nobody has it any more", 0, 0)
}

// BenchmarkSamples is what one look at all processes of this machine costs.
func BenchmarkSamples(b *testing.B) {
	now := time.Now()
	src, err := gpu.New(gpu.Config{Logger: hclog.NewNullLogger(), DefaultSeats: 2, Blocks: []deviceplugin.Simulate{{Model: "H100"}},
		Clock: func() time.Time { now = now.Add(time.Second); return now }})
	require.NoError(b, err)
	for b.Loop() {
		if _, err := src.Samples(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
