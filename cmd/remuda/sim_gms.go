package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	deviceplugin "remuda/device-plugin"
	"remuda/device-plugin/gms/backend/cuda"
	"remuda/device-plugin/gms/backend/host"
	"remuda/device-plugin/gms/client"
	"remuda/device-plugin/gms/wire"
	"remuda/internal/sim/shared"
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
	verifyAlways = "always"
	verifyImport = "import"
)

// simGMS are the flags of an engine whose weights are in the GPU memory service.
type simGMS struct {
	gmsMemory
	socketList, lock string
	verify           string
	timeout          time.Duration
}

func (g *simGMS) declare(fs *flag.FlagSet) {
	fs.StringVar(&g.socketList, "gms-socket", "", "keep the weights in the GPU memory service: its `sockets`, one for each GPU, separated by commas, or auto for those of $"+
		engine.EnvUseGPUs+", else $"+deviceplugin.EnvGPUs+", in $"+gmsSocketDirEnv)
	g.gmsMemory.declare(fs)
	fs.StringVar(&g.lock, "gms-lock", g.lock, "`mode` of the weights' lock: rw_or_ro writes missing weights, ro waits for another engine to write them (default: $"+weightsLockEnv+", else rw_or_ro)")
	fs.StringVar(&g.verify, "verify", verifyAlways, "`when` to compare weights in the GPU memory service with their digests: always (at import and at every wake) or import")
	fs.DurationVar(&g.timeout, "gms-timeout", g.timeout, "`time` limit for a wake that waits for the service; after it the engine ends")
}

// config is nil where the weights are not shared.
func (g *simGMS) config() (*shared.Config, error) {
	if g.socketList == "" {
		return nil, nil
	}
	cfg := &shared.Config{WakeTimeout: g.timeout}
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
	default:
		return nil, usagef("-verify is %q: must be %s or %s", g.verify, verifyAlways, verifyImport)
	}
	var err error
	if cfg.Sockets, err = g.sockets(g.socketList); err != nil {
		return nil, err
	}
	cfg.Space, err = g.space()
	return cfg, err
}

// gmsMemory are the flags that say whose memory the GPU memory service shares.
type gmsMemory struct {
	tag                  string
	backend, cudaLibrary string
}

func (g *gmsMemory) declare(fs *flag.FlagSet) {
	fs.StringVar(&g.tag, "gms-tag", g.tag, "`tag` of the layout, for -gms-socket auto")
	fs.StringVar(&g.backend, "gms-backend", g.backend, "`memory` that the service shares: host or cuda")
	fs.StringVar(&g.cudaLibrary, "cuda-library", "", "`path` of the CUDA driver's library, for -gms-backend cuda")
}

// sockets reads a list of sockets, or finds those of this task's GPUs.
func (g *gmsMemory) sockets(list string) ([]string, error) {
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
	for _, uuid := range gpus {
		out = append(out, filepath.Join(dir, "gms_"+uuid+"_"+g.tag+".sock"))
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
		return func(socket string) (client.Space, func() error, error) {
			// gms_<UUID>_<tag>.sock
			parts := strings.Split(filepath.Base(socket), "_")
			if len(parts) < 3 {
				return nil, nil, fmt.Errorf("-gms-socket %s: must be named gms_<GPU UUID>_<tag>.sock", socket)
			}
			s, err := cuda.NewSpace(cuda.Config{Library: g.cudaLibrary, GPU: parts[1]})
			if err != nil {
				return nil, nil, err
			}
			return s, s.Close, nil
		}, nil
	default:
		return nil, usagef("-gms-backend is %q: must be host or cuda", g.backend)
	}
}
