package postgres

import (
	"fmt"
	"strconv"
	"strings"
)

// SyncStandbyNames is the value of synchronous_standby_names for a quorum commit on num of these standbys; "" when num is 0 or there are none.
func SyncStandbyNames(num int, standbys []string) string {
	if num <= 0 || len(standbys) == 0 {
		return ""
	}
	quoted := make([]string, len(standbys))
	for i, s := range standbys {
		quoted[i] = QuoteIdent(s)
	}
	return fmt.Sprintf("ANY %d (%s)", num, strings.Join(quoted, ", "))
}

// NoStandbyNames is synchronous_standby_names of a server that is no primary. It has no effect there, but it is not empty: whether commits
// wait at all is told to a server's sessions by its checkpointer, which may learn of a change late. So a promotion never begins from empty.
const NoStandbyNames = `ANY 1 ("kumki_none")`

// ParseSyncStandbyNames reads back what SyncStandbyNames wrote. Any other form is an error: Kumki writes only quorum commit.
func ParseSyncStandbyNames(value string) (num int, standbys []string, err error) {
	value = strings.TrimSpace(value)
	if value == "" {
		return 0, nil, nil
	}
	bad := fmt.Errorf("synchronous_standby_names is %q, not the operator's form ANY n (\"a\", …): something else set it", value)
	rest, ok := strings.CutPrefix(value, "ANY ")
	open := strings.IndexByte(rest, '(')
	if !ok || open < 0 || !strings.HasSuffix(rest, ")") {
		return 0, nil, bad
	}
	num, errNum := strconv.Atoi(strings.TrimSpace(rest[:open]))
	if errNum != nil || num < 1 {
		return 0, nil, bad
	}
	for name := range strings.SplitSeq(rest[open+1:len(rest)-1], ",") {
		name = strings.TrimSpace(name)
		if len(name) < 3 || name[0] != '"' || name[len(name)-1] != '"' || strings.Contains(name[1:len(name)-1], `"`) {
			return 0, nil, bad
		}
		standbys = append(standbys, name[1:len(name)-1])
	}
	if num > len(standbys) {
		return 0, nil, bad
	}
	return num, standbys, nil
}
