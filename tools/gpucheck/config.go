package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"remuda/internal/bytesize"
)

// The backends of the GPU memory service.
const (
	backendHost = "host"
	backendCUDA = "cuda"
)

// config is what the flags set; flags says what they mean.
type config struct {
	bin, out, backend, cudaLibrary, nvmlLibrary, gpu string
	suite, weightsDir                                string
	weights                                          uint64 // bytes
	n, cold                                          int
	budget                                           time.Duration
}

func (c *config) flags(fs *flag.FlagSet) {
	self, _ := os.Executable() // without it -bin must be set
	fs.StringVar(&c.bin, "bin", filepath.Dir(self), "`directory` of remuda, remuda-device and gms-conformance")
	fs.StringVar(&c.out, "out", "gpu-check-results", "`directory` for results.md, results.json and logs/")
	fs.StringVar(&c.backend, "backend", backendCUDA, "`cuda`, or host to try the program on a machine without a GPU")
	fs.StringVar(&c.cudaLibrary, "cuda-library", "", "`path` of the CUDA driver's library (default: where the system finds it)")
	fs.StringVar(&c.nvmlLibrary, "nvml-library", "", "`path` of NVML (default: where the system finds it)")
	fs.StringVar(&c.gpu, "gpu", "", "`UUID` of the GPU (default: the driver's first)")
	fs.StringVar(&c.suite, "suite", ".", "`regexp` of the tests of the conformance suite to run; "+noTest+" for none")
	c.weights = 16 << 30 // an 8B model in BF16
	fs.Func("weights", "`size` of the weights of the failover pair (default 16GiB)", func(s string) error {
		n, err := bytesize.Parse(s)
		c.weights = uint64(n)
		return err
	})
	fs.StringVar(&c.weightsDir, "weights-dir", "/dev/shm", "`directory` for the weights file")
	fs.IntVar(&c.n, "n", 20, "`number` of failovers, for each way of checking the weights at a wake")
	fs.IntVar(&c.cold, "cold", 3, "`number` of cold loads")
	fs.DurationVar(&c.budget, "budget", 15*time.Minute, "`time` for the whole run")
}

// validate names every bad flag.
func (c *config) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.backend != backendHost && c.backend != backendCUDA {
		bad("-backend is %q: must be host or cuda", c.backend)
	}
	if _, err := regexp.Compile(c.suite); err != nil {
		bad("-suite is %q: %w", c.suite, err)
	}
	if c.weights < 1<<20 {
		bad("-weights is %d bytes: must be at least 1MiB", c.weights)
	}
	if c.n < 1 || c.cold < 1 || c.budget <= 0 {
		bad("-n is %d, -cold is %d and -budget is %s: must be more than 0", c.n, c.cold, c.budget)
	}
	return errors.Join(errs...)
}
