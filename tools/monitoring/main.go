// Command monitoring writes the Grafana dashboards of jobs/monitoring/dashboards. They are made
// with Grafana's own SDK; a test fails if the files are not what this command writes.
//
//	go run . DIRECTORY
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: monitoring DIRECTORY")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "monitoring:", err)
		os.Exit(1)
	}
}

// write writes each dashboard into a file of the directory.
func write(dir string) error {
	for _, b := range boards {
		data, err := b.json()
		if err != nil {
			return fmt.Errorf("dashboard %s: %w", b.name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, b.name+".json"), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}
