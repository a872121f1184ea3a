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
	"golang.org/x/sys/unix"

	deviceplugin "remuda/device-plugin"
	"remuda/device-plugin/gms/backend"
	"remuda/device-plugin/gms/backend/host"
	"remuda/internal/sim/gpu"
	"remuda/internal/sim/memory"
	"remuda/internal/sim/weights"
	"remuda/internal/vram"
)

// roleEnv makes this program another one: "busy" works on nothing, "bank FILE" holds
// weights on the GPUs of its environment. It answers each line of its input with one.
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
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// bankMain does what it is told: sleep, leak, wake, move.
func bankMain(file string) error {
	b, err := memory.Open(file, memory.Rank{}, memory.Place{GPUs: strings.Split(os.Getenv(deviceplugin.EnvGPUs), ","), Dir: os.Getenv(vram.EnvDir)})
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

// process is this program in another role.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

func start(t *testing.T, dir, role, gpus string) *process {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"="+role, deviceplugin.EnvGPUs+"="+gpus, vram.EnvDir+"="+dir)
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
			got = append(got, *samples[gpu.UUID(t.Name(), i)].MemoryUsedMiB)
		}
		if fmt.Sprint(got) == fmt.Sprint(want) {
			return
		}
		require.True(t, time.Now().Before(deadline), "%s: GPUs use %d MiB, want %d", what, got, want)
	}
}

// simulated makes GPUs, and returns the directory of their memory.
func simulated(t *testing.T, count int) (src *gpu.Source, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "gpus")
	src, err := gpu.New(gpu.Config{Logger: hclog.NewNullLogger(), DefaultSeats: 2, Seed: t.Name(), MemoryDir: dir,
		Blocks: []deviceplugin.Simulate{{Model: "H100", Count: n(count)}}})
	require.NoError(t, err)
	return src, dir
}

// TestDeviceMemoryOfAnEngine: what sleeps is free but for what leaks, whatever it has in
// host memory, and a move moves it.
func TestDeviceMemoryOfAnEngine(t *testing.T) {
	src, dir := simulated(t, 3)
	file := filepath.Join(t.TempDir(), "w.safetensors")
	_, err := weights.Create(file, weights.Spec{Size: 48 << 20, Seed: 1})
	require.NoError(t, err)
	g := func(i int) string { return gpu.UUID(t.Name(), i) }
	one := start(t, dir, "bank "+file, g(0)+","+g(1))
	uses(t, src, "awake", 24, 24, 0)
	two := start(t, dir, "bank "+file, g(1))
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

// TestMemoryOfTheService: what the GPU memory service has counts whether anybody maps it or not, once if
// several do, and takes from what there is for engines.
func TestMemoryOfTheService(t *testing.T) {
	src, dir := simulated(t, 2)
	uuid := gpu.UUID(t.Name(), 1)
	b, err := host.New(host.Config{GPU: uuid, Dir: dir})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	m, err := b.Allocate(30 << 20)
	require.NoError(t, err)
	uses(t, src, "nobody maps it", 0, 30)
	all := int64(81559) << 20
	engine, err := vram.Take(dir, uuid, all-32<<20)
	require.NoError(t, err)
	_, err = b.Allocate(4 << 20)
	require.ErrorIs(t, err, backend.ErrOutOfMemory)
	_, err = b.Allocate(2 << 20)
	require.NoError(t, err)
	_, err = vram.Take(dir, uuid, 1)
	require.ErrorIs(t, err, vram.ErrOutOfMemory)
	require.NoError(t, engine.Free())
	fd, err := m.Export()
	require.NoError(t, err)
	require.NoError(t, m.Release())
	uses(t, src, "released, and an engine has it", 0, 32)
	require.NoError(t, unix.Close(fd))
	uses(t, src, "the engine gave it back", 0, 2)
	require.NoError(t, b.Close())
	uses(t, src, "the service has ended", 0, 0)
}

// BenchmarkSamples is what one look at all processes of this machine costs.
func BenchmarkSamples(b *testing.B) {
	now := time.Now()
	src, err := gpu.New(gpu.Config{Logger: hclog.NewNullLogger(), DefaultSeats: 2, MemoryDir: filepath.Join(b.TempDir(), "gpus"), Blocks: []deviceplugin.Simulate{{Model: "H100"}},
		Clock: func() time.Time { now = now.Add(time.Second); return now }})
	require.NoError(b, err)
	for b.Loop() {
		if _, err := src.Samples(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
