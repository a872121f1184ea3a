package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// oldestSystem is the minor version of the glibc 2 of the oldest systems that the programs run on: Ubuntu 22.04, RHEL 9.
const oldestSystem = 34

// newestGLIBC returns the version of glibc that a program needs, "2.0" if it needs none. It is an error if the
// oldest systems have an older one.
func newestGLIBC(binary string) (string, error) {
	f, err := elf.Open(binary)
	if err != nil {
		return "", err
	}
	defer f.Close()
	symbols, err := f.ImportedSymbols()
	if err != nil && !errors.Is(err, elf.ErrNoSymbols) { // a program that is linked statically has none
		return "", err
	}
	newest := 0
	for _, s := range symbols {
		version, ok := strings.CutPrefix(s.Version, "GLIBC_2.")
		if !ok {
			continue
		}
		minor, _, _ := strings.Cut(version, ".")
		n, err := strconv.Atoi(minor)
		if err != nil {
			return "", fmt.Errorf("%s needs %s of %s, which is no version of glibc", s.Name, s.Version, s.Library)
		}
		if newest = max(newest, n); n > oldestSystem {
			return "", fmt.Errorf("%s needs glibc 2.%d: must be at most 2.%d; build it on an older system", s.Name, n, oldestSystem)
		}
	}
	return fmt.Sprintf("2.%d", newest), nil
}
