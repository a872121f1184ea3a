package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	deviceplugin "remuda/device-plugin"
	"remuda/device-plugin/gms"
	"remuda/device-plugin/gms/backend"
	"remuda/device-plugin/gms/backend/cuda"
	"remuda/device-plugin/gms/backend/host"
	"remuda/device-plugin/gms/client"
	"remuda/device-plugin/gms/wire"
	"remuda/internal/replica"
	"remuda/internal/sim/memory"
	"remuda/internal/sim/shared"
	"remuda/internal/vram"
	"remuda/lockd/engine"
)

// The environment of an engine, from the shim.
const (
	weightsLockEnv = "REMUDA_WEIGHTS_LOCK"
	// gmsAuto finds the sockets by what the device plugin gave the task.
	gmsAuto = "auto"
	// lockRWOrRO and lockRO are the values of weightsLockEnv.
	lockRWOrRO = "rw_or_ro"
	lockRO     = "ro"
	// verifyAlways and verifyImport are the values of -verify.
	verifyAlways     = "always"
	verifyImport     = "import"
	verifyBackground = "background"
)

// simGMS are the flags of an engine whose weights are in the GPU memory service.
type simGMS struct {
	gmsMemory
	socketList, lock string
	verify           string
	timeout, wait    time.Duration
}

func (g *simGMS) declare(fs *flag.FlagSet) {
	fs.StringVar(&g.socketList, "gms-socket", "", "keep the weights in the GPU memory service: its `sockets`, one for each GPU, separated by commas, or auto for those of the model (its name and $"+versionEnv+") on the GPUs of $"+
		engine.EnvUseGPUs+", else $"+deviceplugin.EnvGPUs+", in $"+gmsSocketDirEnv)
	g.gmsMemory.declare(fs)
	fs.StringVar(&g.lock, "gms-lock", g.lock, "`mode` of the weights' lock: rw_or_ro writes missing weights, ro waits for another engine to write them (default: $"+weightsLockEnv+", else rw_or_ro)")
	fs.StringVar(&g.verify, "verify", verifyBackground, "`when` to compare weights in the GPU memory service with their digests: at import, and after every wake while the engine serves already (background), before it serves (always), or not again (import)")
	fs.DurationVar(&g.wait, "gms-wait", time.Hour, "`time` limit for a start that waits for the service, or for weights that another engine writes; 0 for none")
	fs.DurationVar(&g.timeout, "gms-timeout", g.timeout, "`time` limit for a wake that waits for the service; after it the engine ends")
}

// config is nil where the weights are not shared.
func (g *simGMS) config(model string) (*shared.Config, error) {
	if g.socketList == "" {
		return nil, nil
	}
	cfg := &shared.Config{WakeTimeout: g.timeout, Wait: g.wait}
	if g.wait < 0 {
		return nil, usagef("-gms-wait is %s: must be at least 0", g.wait)
	}
	if g.timeout <= 0 {
		return nil, usagef("-gms-timeout is %s: must be more than 0", g.timeout)
	}
	switch g.lock {
	case lockRWOrRO:
		cfg.Lock = wire.Auto
	case lockRO:
		cfg.Lock = wire.RO
	default:
		return nil, usagef("-gms-lock is %q: must be %s or %s", g.lock, lockRWOrRO, lockRO)
	}
	switch g.verify {
	case verifyAlways:
		cfg.Verify = shared.VerifyAlways
	case verifyImport:
		cfg.Verify = shared.VerifyImport
	case verifyBackground:
		cfg.Verify = shared.VerifyBackground
	default:
		return nil, usagef("-verify is %q: must be %s, %s or %s", g.verify, verifyBackground, verifyAlways, verifyImport)
	}
	group := os.Getenv(engine.EnvReplica)
	if name, err := replica.ParseName(group); err == nil {
		model = name.Model // as its shim knows it
	}
	var err error
	if cfg.Sockets, err = g.addresses(g.socketList, model, group); err != nil {
		return nil, err
	}
	cfg.Space, err = g.space()
	return cfg, err
}

// gmsMemory are the flags that say whose memory the GPU memory service shares.
type gmsMemory struct {
	backend, cudaLibrary string
}

func (g *gmsMemory) declare(fs *flag.FlagSet) {
	fs.StringVar(&g.backend, "gms-backend", g.backend, "`memory` that the service shares: host or cuda")
	fs.StringVar(&g.cudaLibrary, "cuda-library", "", "`path` of the CUDA driver's library, for -gms-backend cuda")
}

// versionEnv is the version of the model, which the controller sets.
const versionEnv = "REMUDA_VERSION" // the version of the model that the replica runs; engines of one version on a GPU share its weights

// weightsTag is the tag under which engines share what is on one of so many GPUs of the weights of a
// model's version: each GPU has its own part.
func weightsTag(model string, gpu, gpus int) string {
	tag := model + "@" + cmp.Or(os.Getenv(versionEnv), "0")
	if gpus > 1 {
		tag += fmt.Sprintf("/%d-of-%d", gpu+1, gpus)
	}
	return tag
}

// addresses reads a list of sockets, or finds the units of a model on this task's GPUs.
func (g *gmsMemory) addresses(list, model, group string) ([]string, error) {
	if list != gmsAuto {
		return strings.Split(list, ","), nil
	}
	gpus, _ := engine.TaskGPUs()
	if len(gpus) == 0 {
		return nil, usagef("-gms-socket auto: neither $%s nor $%s is set: run as a Nomad task with a device of remuda-device, or name the sockets", engine.EnvUseGPUs, deviceplugin.EnvGPUs)
	}
	dir := os.Getenv(gmsSocketDirEnv)
	if dir == "" {
		return nil, usagef("-gms-socket auto: $%s is not set: set gms_socket_dir of remuda-device, or name the sockets", gmsSocketDirEnv)
	}
	var out []string
	for i, uuid := range gpus {
		out = append(out, client.Address(gms.NodeSocketPath(dir), uuid, weightsTag(model, i, len(gpus)), group))
	}
	return out, nil
}

// space makes the place in which one GPU's shared memory is mapped.
func (g *gmsMemory) space() (func(socket string) (client.Space, func() error, error), error) {
	switch g.backend {
	case "host":
		return func(string) (client.Space, func() error, error) {
			return host.NewSpace(), func() error { return nil }, nil
		}, nil
	case "cuda":
		return func(address string) (client.Space, func() error, error) {
			uuid, err := client.GPU(address)
			if err != nil {
				return nil, nil, fmt.Errorf("-gms-socket: %w", err)
			}
			s, err := cuda.NewSpace(cuda.Config{Library: g.cudaLibrary, GPU: uuid})
			if err != nil {
				return nil, nil, err
			}
			return s, s.Close, nil
		}, nil
	default:
		return nil, usagef("-gms-backend is %q: must be host or cuda", g.backend)
	}
}

// place is where a worker has its KV cache: on the GPU itself with the cuda backend, as an engine has it.
func (g *gmsMemory) place(gpu, simulated string) (memory.Place, error) {
	at := memory.Place{GPUs: []string{gpu}, Dir: simulated}
	if g.backend != "cuda" {
		return at, nil
	}
	b, err := cuda.New(cuda.Config{Library: g.cudaLibrary, GPU: gpu})
	if err != nil {
		return at, err
	}
	at.Real = func(_ string, n int64) (func() error, error) {
		unit := int64(b.Granularity())
		m, err := b.Allocate(uint64((n + unit - 1) / unit * unit))
		if errors.Is(err, backend.ErrOutOfMemory) {
			err = fmt.Errorf("%w: %w", vram.ErrOutOfMemory, err)
		}
		if err != nil {
			return nil, err
		}
		return m.Release, nil
	}
	return at, nil
}
