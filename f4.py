# special cases
from fz import *
from zlib import crc32
def sealraw(b):  # b: bytes of a JSON object
    p=b.rstrip()[:-1]; return p+b',"crc":"%08x"}'%crc32(p)
READS=lambda r,o,sub:[['status','--name',r],['status','--json'],['verify','--name',r],['report','--name',r,'--users','all','--with-posts'],['report'],['compare',r,o,'--resamples','1000'],['stats',r,'--format','csv'],['stats','--published']]
def GR(r,o,sub):
    RUNC=['run','--model','baseline/random','--seed','3','--platform','weibo'] if sub=='weibo' else ['run','dailymobility','--model','baseline/commuter']
    return [READS(r,o,sub),[['reeval','--name',r],['verify','--name',r]],[['reeval','--name',r,'--reparse']],[['resume','--name',r]],[['resume']],[RUNC],[['sample','--ratio','0.5']]]
fresh()
deepin=lambda d,k,where: None
for r,o,sub in (('random','recency','weibo'),('commuter','random-day','beijing')):
    F={k:f'results/{r}/{n}' for k,n in dict(res=f'inference_results_{sub}.jsonl',resp=f'responses_{sub}.jsonl',fail=f'failures_{sub}.jsonl',man=f'run_{sub}.json',log=f'run_{sub}.log',rep=f'eval_report_{sub}.json',txt=f'eval_report_{sub}.txt',html=f'eval_report_{sub}.html',lock=f'run_{sub}.lock',prompt='prompt_own.txt',**({'gen':'generated_beijing.json'} if sub=='beijing' else {})).items()}
    F['tasks']='tasks/weibo_inference_tasks.jsonl' if sub=='weibo' else 'tasks/dailymobility/profiles.json'
    if sub=='beijing':
        F['pb']='tasks/dailymobility/beijing.pb'; F['npy']='tasks/dailymobility/groundtruth/gyration_radius.npy'
    G=GR(r,o,sub)
    if sub=='beijing': G=G+[[['score-mobility',f'results/{r}/generated_beijing.json','--data','tasks/dailymobility']]]
    for k,f in F.items():
        def rm():
            if os.path.exists(f): os.remove(f)
        def A(fun): return lambda: (rm(),fun())
        case(f'{f} gone',rm,G)
        case(f'{f} dir',A(lambda: os.mkdir(f)),G)
        case(f'{f} fifo',A(lambda: os.mkfifo(f)),G)
        case(f'{f} empty',A(lambda: open(f,'w').close()),G)
        case(f'{f} dangling',A(lambda: os.symlink('/nonexistent/x',f)),G)
        case(f'{f} loop',A(lambda: os.symlink(os.path.basename(f),f)),G)
        case(f'{f} devnull',A(lambda: os.symlink('/dev/null',f)),G)
        case(f'{f} procmem',A(lambda: os.symlink('/proc/self/mem',f)),G)
        case(f'{f} nonl',lambda: (lambda b: open(f,'wb').write(b.rstrip(b'\n')))(open(f,'rb').read()),G)
        case(f'{f} half',lambda: (lambda b: open(f,'wb').write(b[:len(b)//2]))(open(f,'rb').read()),G)
        case(f'{f} bom',lambda: (lambda b: open(f,'wb').write(b'\xef\xbb\xbf'+b))(open(f,'rb').read()),G)
        case(f'{f} crlf',lambda: (lambda b: open(f,'wb').write(b.replace(b'\n',b'\r\n')))(open(f,'rb').read()),G)
        case(f'{f} twice',lambda: (lambda b: open(f,'wb').write(b+b))(open(f,'rb').read()),G)
        case(f'{f} random',lambda: open(f,'wb').write(os.urandom(5000)),G)
        case(f'{f} nul',lambda: open(f,'wb').write(b'\0'*5000),G)
        for n,v in (('null',b'null'),('list',b'[]'),('num',b'7'),('str',b'"x"'),('{}',b'{}'),('deep',b'['*100000),('deep2',b'['*100000+b']'*100000),('surr',b'{"a":"\\ud800"}'),('big',b'{"a":'+b'9'*6000+b'}'),('NaN',b'{"a":NaN}'),('1e999',b'{"a":1e999}'),('latin',b'{"a":"\xe9"}')):
            case(f'{f} is {n}',lambda: open(f,'wb').write(v+b'\n'),G)
        if f.endswith(('.jsonl','.log')) and not f.startswith('tasks'):
            L=open(f'{P}/{f}','rb').read().split(b'\n')
            base=L[0][:-len(b',"crc":"00000000"}')]+b'}' if L[0] else b'{"user_id":"u","boundary":"endpoint","kind":"k","detail":"d","tries":1,"task":"t","time":1.0,"format":1}'
            def w(b,dup=False):
                nl=[sealraw(b)]+L[1:]
                open(f,'wb').write(b'\n'.join(nl))
                m=f'results/{r}/run_{sub}.json'
                if k=='res':
                    md=orjson.loads(open(m,'rb').read()); md['results_sha256']=hashlib.sha256(b'\n'.join(nl)).hexdigest()
                    open(m,'wb').write(orjson.dumps(md,option=orjson.OPT_INDENT_2)+b'\n')
            for depth in (240,250,251,252,253,254,255,256,300,900,1100):
                case(f'{f} sealed deep z {depth}',lambda: w(base[:-1]+b',"z":'+b'['*depth+b']'*depth+b'}'),G)
                case(f'{f} sealed deep dict {depth}',lambda: w(base[:-1]+b',"z":'+b'{"a":'*depth+b'1'+b'}'*depth+b'}'),G)
            case(f'{f} sealed surr',lambda: w(base[:-1]+b',"z":"\\ud800"}'),G)
            case(f'{f} sealed notjson',lambda: w(b'{nonsense}'),G)
            case(f'{f} sealed empty obj',lambda: w(b'{"a":1}'),G)
            case(f'{f} sealed crc twice',lambda: w(base[:-1]+b',"crc":"deadbeef"}'),G)
            case(f'{f} sealed dup key',lambda: w(base[:-1]+b',"user_id":"zz"}'),G)
            case(f'{f} sealed NUL',lambda: w(base[:-1]+b',"z":"\x00"}'),G)
            case(f'{f} sealed bad utf8',lambda: w(base[:-1]+b',"z":"\xff"}'),G)
            case(f'{f} sealed big int',lambda: w(base[:-1]+b',"z":99999999999999999999999}'),G)
            for uid in (b'7',b'null',b'[]',b'{}',b'true',b'1e5',b'"\\u0000"',b'""'):
                x=orjson.loads(base); x.pop('user_id',None)
                case(f'{f} sealed uid {uid}',lambda: w(b'{"user_id":'+uid+b','+orjson.dumps(x)[1:]),G)
        LOG.flush()
done()
