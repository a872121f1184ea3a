package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Child returns the process ID of a child of a process, 0 if it has none.
func Child(parent int) int {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	for _, list := range lists {
		if b, err := os.ReadFile(list); err == nil && len(b) > 0 {
			if pid, err := strconv.Atoi(strings.Fields(string(b))[0]); err == nil {
				return pid
			}
		}
	}
	return 0
}
