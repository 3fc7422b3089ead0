package postgres

import (
	"fmt"
	"sort"
	"strings"
)

// QuoteIdent quotes an SQL identifier.
func QuoteIdent(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

// QuoteLiteral quotes an SQL string so that it means the same whatever standard_conforming_strings says.
func QuoteLiteral(s string) string {
	q := "'" + strings.ReplaceAll(s, "'", "''") + "'"
	if strings.Contains(s, `\`) {
		return "E" + strings.ReplaceAll(q, `\`, `\\`)
	}
	return q
}

// quoteConf quotes a value of postgresql.conf, where a string ends at the line's end and knows backslash escapes.
func quoteConf(s string) string {
	r := strings.NewReplacer(`\`, `\\`, `'`, `''`, "\n", `\n`, "\r", `\r`, "\t", `\t`, "\b", `\b`, "\f", `\f`)
	return "'" + r.Replace(s) + "'"
}

// ConnInfo builds a libpq connection string, keys sorted, empty values left out. A password is refused, so that none gets into
// argv, a configuration file or a log: use a client certificate, or the environment of the process.
func ConnInfo(kv map[string]string) (string, error) {
	keys := make([]string, 0, len(kv))
	for k, v := range kv {
		switch {
		case k == "password" || k == "sslpassword":
			return "", fmt.Errorf("a connection string must not hold a %s: authenticate by client certificate", k)
		case strings.ContainsRune(v, 0):
			return "", fmt.Errorf("the value of %s in a connection string holds a NUL byte", k)
		case v != "":
			keys = append(keys, k)
		}
	}
	sort.Strings(keys)
	parts := make([]string, len(keys))
	quote := strings.NewReplacer(`\`, `\\`, `'`, `\'`)
	for i, k := range keys {
		parts[i] = k + "='" + quote.Replace(kv[k]) + "'"
	}
	return strings.Join(parts, " "), nil
}
